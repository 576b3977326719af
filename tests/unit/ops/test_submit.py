"""What a submission is made of: files that hold together, and no secret in any of them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.config import PipelineConfig, load
from penstock.errors import MissingError
from penstock.ops.submit import submit as submission
from penstock.ops.submit.submit import PlannedSubmission, plan_submission, write_submission
from penstock.ops.submit.terms import Submission

SECRET = "hunter2-is-the-password"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ORDERS_DB", f"postgresql://orders:{SECRET}@db/orders")
    monkeypatch.setenv("LOOK_ENDPOINT", f"https://{SECRET}")
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps/__init__.py").write_text("def same(rows):\n    return rows\n")
    (tmp_path / "password.txt").write_text(SECRET)
    (tmp_path / "account.json").write_text(SECRET)
    (tmp_path / "neighbour.yaml").write_text(f"name: {SECRET}")
    (tmp_path / "orders.ddl").write_text("order_id BIGINT NOT NULL, amount DOUBLE")
    return tmp_path


def pipeline(folder: Path, **keys: Any) -> PipelineConfig:
    body = {
        "name": "Orders_EU.v2",
        "source": {
            "type": "kafka",
            "brokers": "kafka:9092",
            "topics": ["orders"],
            "options": {"sasl.username": "orders", "sasl.password": "${file:password.txt}"},
        },
        "decode": {"format": "json", "schema_file": "orders.ddl"},
        "transforms": [{"map_arrow": "steps.same"}],
        "sinks": [
            {"name": "pg", "type": "postgres", "url": "${env:ORDERS_DB}", "table": "public.orders"},
            {"name": "lake", "type": "delta", "path": "s3://lake/orders"},
        ],
        "checkpoint": "s3://lake/checkpoints/orders",
        "spark": {"spark.executor.memory": "4g", "spark.app.look": "${env:LOOK_ENDPOINT:-none}"},
        **keys,
    }
    file = folder / "orders.yaml"
    file.write_text(yaml.safe_dump(body))
    return load(file)


def put_one_jar(folder: Path, stores: Sequence[str]) -> None:
    """Stands in for two hundred megabytes."""
    folder.mkdir()
    (folder / f"{'-'.join(['spark', *stores])}.jar").touch()


def planned(folder: Path, master: str, **asked: Any) -> PlannedSubmission:
    config = pipeline(folder).on_master(master)
    return plan_submission(config, Submission(file=folder / "orders.yaml", **asked))


def test_kubernetes_files_refer_to_each_other_and_hold_no_secret(folder: Path) -> None:
    found = planned(
        folder, "k8s://https://cluster:6443", deploy_mode="cluster", image="registry/orders:1", namespace="etl"
    )
    assert not [name for name, text in found.texts.items() if SECRET in text]
    [config_map] = yaml.safe_load_all(found.texts["configmap.yaml"])
    [application] = yaml.safe_load_all(found.texts["spark-application.yaml"])
    [pod] = yaml.safe_load_all(found.texts["driver-pod.yaml"])
    assert set(config_map["data"]) == {"orders.yaml", "orders.ddl", "steps____init__.py"}
    assert config_map["metadata"]["name"] == "orders-eu-v2-pipeline"
    spec = application["spec"]
    assert spec["arguments"][:2] == ["run", "/opt/penstock/pipeline/orders.yaml"]
    assert spec["executor"] == {"instances": 2, "cores": 1, "memory": "4g"}
    assert spec["restartPolicy"]["type"] == "Always"
    assert "python -m penstock.spark.jars --into /opt/spark/jars/ --store s3 " in found.texts["Dockerfile"]
    assert "COPY . " not in found.texts["Dockerfile"]
    assert found.texts[".dockerignore"].splitlines()[1:] == ["*", "!penstock_app.py", "!entrypoint.sh", "!*.whl"]
    assert re.search(spec["sparkConf"]["spark.redaction.regex"], "spark.app.look"), "what came by a reference"
    [volume] = spec["volumes"]
    assert pod["spec"]["volumes"] == [volume]
    of_files, of_secrets = volume["projected"]["sources"]
    assert {"key": "steps____init__.py", "path": "steps/__init__.py"} in of_files["configMap"]["items"]
    assert of_secrets["secret"]["items"] == [{"key": "password.txt", "path": "password.txt"}]
    wanted = {one["name"]: one["valueFrom"]["secretKeyRef"] for one in spec["driver"]["env"]}
    assert wanted["ORDERS_DB"] == {"name": "orders-eu-v2-secrets", "key": "ORDERS_DB", "optional": False}
    assert wanted["LOOK_ENDPOINT"]["optional"]
    assert pod["spec"]["containers"][0]["env"] == spec["driver"]["env"]
    assert "spark.app.look" not in spec["sparkConf"]


# As the operator's own types name them (api/v1beta2), as far as they are used.
SPEC_FIELDS = {
    "type", "pythonVersion", "mode", "image", "imagePullPolicy", "mainApplicationFile", "arguments", "sparkVersion",
    "sparkConf", "restartPolicy", "volumes", "driver", "executor",
}  # fmt: skip
POD_FIELDS = {"cores", "memory", "serviceAccount", "env", "volumeMounts", "lifecycle", "terminationGracePeriodSeconds"}
RESTART_FIELDS = {
    "type", "onFailureRetries", "onFailureRetryInterval", "onSubmissionFailureRetries",
    "onSubmissionFailureRetryInterval",
}  # fmt: skip


@pytest.mark.parametrize("options", [(), ("--available-now",)])
def test_spark_application_has_only_fields_that_the_operator_knows(folder: Path, options: tuple[str, ...]) -> None:
    found = planned(folder, "k8s://https://cluster:6443", deploy_mode="cluster", options=options)
    spec = yaml.safe_load(found.texts["spark-application.yaml"])["spec"]
    assert set(spec) == SPEC_FIELDS
    assert set(spec["driver"]) == POD_FIELDS
    assert set(spec["executor"]) <= POD_FIELDS | {"instances"}
    assert set(spec["restartPolicy"]) <= RESTART_FIELDS
    assert spec["restartPolicy"]["type"] == ("OnFailure" if options else "Always")
    assert all(isinstance(value, str) for value in spec["sparkConf"].values())
    numbers = [spec[who][what] for who, what in (("driver", "cores"), ("executor", "cores"), ("executor", "instances"))]
    assert all(isinstance(number, int) for number in numbers)


def test_kubernetes_scripts_are_shell(folder: Path) -> None:
    found = planned(folder, "k8s://https://cluster:6443", deploy_mode="cluster")
    for name, shell in (("submit.sh", "sh"), ("entrypoint.sh", "bash")):
        subprocess.run([shell, "-n"], input=found.texts[name], text=True, check=True)
    assert "--conf spark.kubernetes.driver.podTemplateFile=driver-pod.yaml" in found.texts["submit.sh"]


def test_yarn_script_takes_secrets_from_its_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = planned(folder, "yarn", deploy_mode="cluster", options=("--available-now",))
    script = found.texts["submit.sh"]
    subprocess.run(["sh", "-n"], input=script, text=True, check=True)
    assert SECRET not in script
    assert ': "${ORDERS_DB:?' in script
    assert "LOOK_ENDPOINT:?" not in script
    assert "--archives 'packages.tar.gz#penstock_packages,pipeline.zip#penstock_pipeline'" in script
    assert "penstock_app.py run penstock_pipeline/orders.yaml --log-format json --available-now" in script
    assert "pipeline/password.txt" not in found.copies
    assert found.copies["pipeline/orders.yaml"] == folder / "orders.yaml"
    monkeypatch.setattr(submission.Shipping, "pack_environment", lambda *_: folder / "orders.ddl")
    monkeypatch.setattr(submission, "put_jars", put_one_jar)
    written = write_submission(found, folder / "out")
    assert (folder / "out/submit.sh").stat().st_mode & 0o111
    assert (folder / "out/pipeline/steps/__init__.py").exists()
    assert not [path for path in written if path.is_file() and SECRET in path.read_text()]


def image_of_a_pipeline_at(folder: Path, there: str) -> str:
    config = pipeline(
        folder, checkpoint=f"{there}/ck", sinks=[{"name": "lake", "type": "delta", "path": f"{there}/orders"}]
    ).on_master("k8s://https://cluster:6443")
    asked = Submission(file=folder / "orders.yaml", deploy_mode="cluster")
    return plan_submission(config, asked).texts["Dockerfile"]


def test_jars_of_s3_are_for_pipelines_on_s3_alone(folder: Path) -> None:
    image = image_of_a_pipeline_at(folder, "abfss://lake@shop.dfs.core.windows.net")
    assert "--into /opt/spark/jars/ \\\n" in image


def test_image_of_a_pipeline_on_hdfs_has_its_client(folder: Path) -> None:
    image = image_of_a_pipeline_at(folder, "hdfs://name:8020")
    assert 'pip install --no-cache-dir "$PENSTOCK" hdfs-native\n' in image


def test_yarn_script_runs_spark_submit_with_what_it_says(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A spark-submit that tells what it was given stands in for a cluster."""
    found = planned(folder, "yarn", deploy_mode="cluster")
    monkeypatch.setattr(submission.Shipping, "pack_environment", lambda *_: folder / "orders.ddl")
    monkeypatch.setattr(submission, "put_jars", put_one_jar)
    out, home = folder / "out", folder / "spark"
    write_submission(found, out)
    (home / "bin").mkdir(parents=True)
    (home / "bin/spark-submit").write_text(
        '#!/bin/sh\nfor a; do echo "$a"; [ "$before" = --properties-file ] && cat "$a"; before="$a"; done; exit 7\n'
    )
    (home / "bin/spark-submit").chmod(0o755)
    environment = {
        "SPARK_HOME": str(home),
        "ORDERS_DB": SECRET,
        "PENSTOCK_SECRETS": str(folder),
        "PATH": "/usr/bin:/bin",
    }
    done = subprocess.run([out / "submit.sh"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr
    assert f"spark.yarn.appMasterEnv.ORDERS_DB {SECRET}" in done.stdout
    assert "jars/spark-s3.jar" in done.stdout, "the pipeline is on S3"
    assert "spark.executorEnv.PYTHONPATH penstock_packages" in done.stdout
    assert (out / "pipeline.zip").exists()


def test_yarn_script_gives_java_the_password_as_it_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission.Shipping, "pack_environment", lambda *_: folder / "orders.ddl")
    monkeypatch.setattr(submission, "put_jars", put_one_jar)
    config = pipeline(folder, spark={"spark.x.path": "C:\\\\shop\nEND\nrm -rf x", "spark.y": "plain"}).on_master("yarn")
    found = plan_submission(config, Submission(file=folder / "orders.yaml", deploy_mode="cluster"))
    out, home, told = folder / "out", folder / "spark", folder / "told.properties"
    write_submission(found, out)
    (home / "bin").mkdir(parents=True)
    (home / "bin/spark-submit").write_text(
        f'#!/bin/sh\nwhile [ "$1" != --properties-file ]; do shift; done; cp "$2" {told}\n'
    )
    (home / "bin/spark-submit").chmod(0o755)
    password = 'a\\nb\\\\c d=e:f#g!h\nsecond "line" $HOME `x`'
    environment = {
        "SPARK_HOME": str(home),
        "ORDERS_DB": password,
        "PENSTOCK_SECRETS": str(folder),
        "PATH": "/usr/bin:/bin",
    }
    subprocess.run([out / "submit.sh"], env=environment, check=True, capture_output=True)
    settings = as_java_reads(told.read_text())
    assert settings["spark.yarn.appMasterEnv.ORDERS_DB"] == password
    assert settings["spark.x.path"] == "C:\\\\shop\nEND\nrm -rf x" and settings["spark.y"] == "plain"
    assert told.stat().st_mode & 0o077 == 0


def as_java_reads(text: str) -> dict[str, str]:
    """A properties file by the rules of `java.util.Properties.load`, as far as they are used."""
    found = {}
    for line in filter(None, text.splitlines()):
        name, _, value = line.partition(" ")
        found[name] = re.sub(r"\\(.)", lambda at: {"n": "\n", "r": "\r"}.get(at[1], at[1]), value)
    return found


def test_submission_without_a_cluster_is_refused(folder: Path) -> None:
    with pytest.raises(MissingError) as refused:
        planned(folder, "local[*]")
    assert refused.value.code == "MASTER_MISSING"


def test_submission_of_the_driver_to_a_standalone_cluster_is_refused(folder: Path) -> None:
    with pytest.raises(MissingError) as refused:
        planned(folder, "spark://spark.internal:7077", deploy_mode="cluster")
    assert refused.value.code == "DEPLOY_MODE_UNSUPPORTED"


def test_submission_with_a_file_outside_the_folder_is_refused(folder: Path) -> None:
    inner = folder / "inner"
    inner.mkdir()
    (inner / "steps.py").write_text("def same(rows):\n    return rows\n")
    config = pipeline(inner, decode={"format": "json", "schema_file": "../orders.ddl"}, source=PLAIN)
    with pytest.raises(MissingError) as refused:
        plan_submission(config.on_master("yarn"), Submission(file=inner / "orders.yaml", deploy_mode="cluster"))
    assert refused.value.code == "FILE_OUTSIDE_FOLDER"


PLAIN = {"type": "kafka", "brokers": "kafka:9092", "topics": ["orders"]}


def test_kubernetes_folder_larger_than_a_config_map_is_refused_with_its_size(folder: Path) -> None:
    with (folder / "steps/__init__.py").open("a") as steps:
        steps.write("#" * 1_100_000)
    with pytest.raises(MissingError) as refused:
        planned(folder, "k8s://https://cluster:6443", deploy_mode="cluster", image="registry/orders:1")
    assert refused.value.code == "CONFIGMAP_TOO_LARGE"
    assert (refused.value.context["files"], refused.value.context["bytes"][:4]) == ("3", "1,10")
