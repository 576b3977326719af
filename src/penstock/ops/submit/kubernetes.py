"""A submission to Kubernetes: an image, the pipeline's folder as a ConfigMap, and two ways to start it.

`spark-application.yaml` is for the Spark operator (`sparkoperator.k8s.io/v1beta2`), `submit.sh` for spark-submit with a
pod template. The image has everything but the pipeline; secrets are those of one Secret, by their keys. Executors need
none: what a task needs is in the task.
"""

from __future__ import annotations

import base64
import shlex
from typing import Any

import yaml

from penstock.assembly.placing import shipping_of
from penstock.errors import MissingError
from penstock.ops.submit.terms import APP, APP_TEXT, SCRIPT, PlannedSubmission, Terms

DOCKERFILE = """\
# The image of driver and executors: Python, Java, Penstock, and Spark with the jars that it needs.
# The pipeline is not in it.
FROM python:3.11-slim-bookworm

RUN apt-get update \\
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps tini \\
    && rm -rf /var/lib/apt/lists/*

# A release, or a wheel in this folder: --build-arg PENSTOCK=./penstock-{release}-py3-none-any.whl
ARG PENSTOCK=penstock=={release}
COPY {app} *.whl /build/
WORKDIR /build
RUN pip install --no-cache-dir "$PENSTOCK"{packages}
WORKDIR /opt

ENV PENSTOCK_HOME=/opt/penstock/home \\
    SPARK_HOME=/opt/spark \\
    JAVA_HOME=/usr/lib/jvm/default-java
RUN ln -s "$(dirname "$(find /usr/lib/jvm -path '*/bin/java' | head -n 1)")/.." /usr/lib/jvm/default-java \\
    && ln -s "$(python -c 'import pyspark; print(pyspark.__path__[0])')" /opt/spark \\
    && python -m penstock.spark.jars --into /opt/spark/jars/{stores} \\
    && mkdir -p /opt/penstock/work \\
    && chown -R 185:185 /opt/penstock

COPY {app} /opt/penstock/{app}
COPY entrypoint.sh /opt/entrypoint.sh

USER 185
WORKDIR /opt/penstock/work
ENTRYPOINT ["/opt/entrypoint.sh"]
"""

DOCKERIGNORE = """\
# Neither the pipeline nor other files here get into the image.
*
!{app}
!entrypoint.sh
!*.whl
"""

ENTRYPOINT = """\
#!/bin/bash
# Starts a driver or an executor, as Spark on Kubernetes calls its image; anything else is run unchanged.
set -euo pipefail

# Spark's user may have no name here, but Hadoop requires one.
if ! getent passwd "$(id -u)" > /dev/null && [ -w /etc/passwd ]; then
    echo "spark:x:$(id -u):$(id -g):Spark:/opt/penstock:/bin/false" >> /etc/passwd
fi
export HOME=/opt/penstock
CLASSPATH="${SPARK_EXTRA_CLASSPATH:+$SPARK_EXTRA_CLASSPATH:}$SPARK_HOME/jars/*"

case "${1:-}" in
driver)
    shift
    exec tini -s -- "$SPARK_HOME/bin/spark-submit" \\
        --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" \\
        --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=$SPARK_DRIVER_BIND_ADDRESS" \\
        --deploy-mode client "$@"
    ;;
executor)
    mapfile -t options < <(env | sed -n 's/^SPARK_JAVA_OPT_[0-9]*=//p')
    exec tini -s -- "$JAVA_HOME/bin/java" "${options[@]}" \\
        "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \\
        -cp "${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$CLASSPATH" \\
        org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \\
        --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \\
        --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \\
        --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
*)
    exec "$@"
    ;;
esac
"""


_MOUNT = "/opt/penstock/pipeline"
_MOST_BYTES = 1_000_000
_GRACE_SECONDS = 300
SPARK_VERSION = "4.1.1"


def kubernetes_files(terms: Terms) -> PlannedSubmission:
    """Everything that Kubernetes needs, as files."""
    image = terms.asked.image or f"{terms.name}:{terms.release}"
    texts = {
        "Dockerfile": DOCKERFILE.format(
            release=terms.release,
            packages="".join(f" {one}" for one in shipping_of(terms.config).packages),
            stores="".join(f" --store {one}" for one in terms.stores),
            app=APP,
        ),
        ".dockerignore": DOCKERIGNORE.format(app=APP),
        "entrypoint.sh": ENTRYPOINT,
        APP: APP_TEXT,
        "account.yaml": _documents(*_account(terms)),
        "configmap.yaml": _documents(config_map(terms)),
        "spark-application.yaml": _documents(spark_application(terms, image)),
        "driver-pod.yaml": _documents(driver_pod(terms)),
        SCRIPT: script(terms, image),
    }
    return PlannedSubmission(terms.parcel.folder, texts, next_steps=_next_steps(terms, image))


def config_map(terms: Terms) -> dict[str, Any]:
    """The pipeline file and the files that it needs, without the secret ones."""
    contents = {name: (terms.parcel.folder / name).read_bytes() for name in terms.parcel.files}
    size = sum(map(len, contents.values()))
    if size > _MOST_BYTES:
        raise MissingError(
            "CONFIGMAP_TOO_LARGE",
            "writing the pipeline's folder as a ConfigMap: it takes 1 MB at most",
            context={"files": len(contents), "bytes": f"{size:,}"},
            hint="move large files out of the folder, or into a package that the image installs",
        )
    texts, others = {}, {}
    for name, content in contents.items():
        try:
            texts[_key(name)] = content.decode()
        except UnicodeDecodeError:
            others[_key(name)] = base64.b64encode(content).decode()
    body = {"data": texts, **({"binaryData": others} if others else {})}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(terms, "pipeline"), **body}


def spark_application(terms: Terms, image: str) -> dict[str, Any]:
    """What the Spark operator runs."""
    drains = "--available-now" in terms.asked.options or terms.config.trigger.available_now
    restart: dict[str, Any] = {"type": "OnFailure", "onFailureRetries": 3} if drains else {"type": "Always"}
    restart |= {"onFailureRetryInterval": 10, "onSubmissionFailureRetries": 5, "onSubmissionFailureRetryInterval": 20}
    driver = {
        "cores": int(terms.setting("spark.driver.cores", "1")),
        "memory": terms.setting("spark.driver.memory", "1g"),
        "serviceAccount": terms.asked.service_account,
        "env": _environment(terms),
        "volumeMounts": [_mount()],
        "lifecycle": _lifecycle(terms),
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
    }
    executor = {
        "instances": int(terms.setting("spark.executor.instances", "2")),
        "cores": int(terms.setting("spark.executor.cores", "1")),
        "memory": terms.setting("spark.executor.memory", "1g"),
    }
    spec = {
        "type": "Python",
        "pythonVersion": "3",
        "mode": "cluster",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "mainApplicationFile": f"local:///opt/penstock/{APP}",
        "arguments": terms.run_words(_MOUNT),
        "sparkVersion": SPARK_VERSION,
        "sparkConf": _settings(terms),
        "restartPolicy": restart,
        "volumes": [_volume(terms)],
        "driver": {name: value for name, value in driver.items() if value != []},
        "executor": executor,
    }
    kind = {"apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": "SparkApplication"}
    return {**kind, "metadata": _metadata(terms), "spec": spec}


def driver_pod(terms: Terms) -> dict[str, Any]:
    """What spark-submit makes the driver's pod from: the pipeline's folder, and secrets by reference."""
    container = {
        # The name under which Spark looks for its own container in a template.
        "name": "spark-kubernetes-driver",
        "env": _environment(terms),
        "volumeMounts": [_mount()],
        "lifecycle": _lifecycle(terms),
    }
    spec = {
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
        "volumes": [_volume(terms)],
        "containers": [{name: value for name, value in container.items() if value != []}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "spec": spec}


def script(terms: Terms, image: str) -> str:
    """The way without an operator."""
    settings = {
        "spark.kubernetes.container.image": image,
        "spark.kubernetes.namespace": terms.asked.namespace,
        "spark.kubernetes.authenticate.driver.serviceAccountName": terms.asked.service_account,
        "spark.kubernetes.driver.podTemplateFile": "driver-pod.yaml",
        "spark.executor.instances": terms.setting("spark.executor.instances", "2"),
        **_settings(terms),
    }
    conf = " \\\n".join(f"  --conf {shlex.quote(f'{name}={value}')}" for name, value in sorted(settings.items()))
    words = " ".join(map(shlex.quote, (f"local:///opt/penstock/{APP}", *terms.run_words(_MOUNT))))
    return (
        "#!/bin/sh\n"
        f"# Starts the pipeline {terms.config.name} on Kubernetes. First apply configmap.yaml and account.yaml.\n"
        f"# The Secret {terms.name}-secrets contains the secrets of the pipeline.\n"
        "set -eu\n"
        'cd "$(dirname "$0")"\n'
        'exec "${SPARK_HOME:?names the folder of Spark}"/bin/spark-submit \\\n'
        f"  --master {shlex.quote(terms.placement.master)} --deploy-mode cluster --name {shlex.quote(terms.name)} \\\n"
        f"{conf} \\\n"
        f"  {words}\n"
    )


def _settings(terms: Terms) -> dict[str, str]:
    beside = ("spark.driver.cores", "spark.driver.memory", "spark.executor.instances", "spark.executor.cores")
    own = {name: value for name, value in terms.settings.items() if name not in (*beside, "spark.executor.memory")}
    return {"spark.pyspark.python": "python3", "spark.pyspark.driver.python": "python3", **own}


def _environment(terms: Terms) -> list[dict[str, Any]]:
    secret = f"{terms.name}-secrets"
    return [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": name, "optional": not needed}}}
        for name, needed in sorted(terms.parcel.variables.items())
    ]


def _volume(terms: Terms) -> dict[str, Any]:
    """The pipeline's folder as it is here: its files, and those that are secrets."""
    of = {"configMap": (f"{terms.name}-pipeline", terms.parcel.files)}
    if terms.parcel.secret_files:
        of["secret"] = (f"{terms.name}-secrets", terms.parcel.secret_files)
    sources = [
        {kind: {"name": name, "items": [{"key": _key(file), "path": file} for file in files]}}
        for kind, (name, files) in of.items()
    ]
    return {"name": "pipeline", "projected": {"sources": sources}}


def _mount() -> dict[str, Any]:
    return {"name": "pipeline", "mountPath": _MOUNT, "readOnly": True}


def _lifecycle(terms: Terms) -> dict[str, Any]:
    """Finish the current batch before the pod ends."""
    stop = ["penstock", "stop", f"{_MOUNT}/{terms.parcel.pipeline}"]
    return {"preStop": {"exec": {"command": stop}}}


def _account(terms: Terms) -> list[dict[str, Any]]:
    """The account by which a driver starts and ends its executors."""
    name, where = terms.asked.service_account, {"namespace": terms.asked.namespace}
    what = ["pods", "services", "configmaps", "persistentvolumeclaims"]
    verbs = ["create", "get", "list", "watch", "update", "patch", "delete", "deletecollection"]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    rbac = "rbac.authorization.k8s.io/v1"
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, **where}},
        {
            "apiVersion": rbac,
            "kind": "Role",
            "metadata": {"name": name, **where},
            "rules": [{"apiGroups": [""], "resources": what, "verbs": verbs}],
        },
        {
            "apiVersion": rbac,
            "kind": "RoleBinding",
            "metadata": {"name": name, **where},
            "roleRef": role,
            "subjects": [{"kind": "ServiceAccount", "name": name, **where}],
        },
    ]


def _metadata(terms: Terms, of: str = "") -> dict[str, Any]:
    name = f"{terms.name}-{of}" if of else terms.name
    labels = {"app.kubernetes.io/name": terms.name, "app.kubernetes.io/managed-by": "penstock"}
    return {"name": name, "namespace": terms.asked.namespace, "labels": labels}


def _next_steps(terms: Terms, image: str) -> tuple[str, ...]:
    held = [f"--from-literal={name}=..." for name in sorted(terms.parcel.variables)]
    held += [f"--from-file={_key(name)}={terms.parcel.folder / name}" for name in terms.parcel.secret_files]
    namespace = f"--namespace {terms.asked.namespace}"
    secret = f"  kubectl create secret generic {terms.name}-secrets {namespace} {' '.join(held)}"
    return (
        "next:",
        f"  docker build --tag {image} . && docker push {image}",
        *([secret] if held else []),
        f"  kubectl apply --filename account.yaml --filename configmap.yaml {namespace}",
        "  kubectl apply --filename spark-application.yaml     with the Spark operator, or",
        f"  ./{SCRIPT}     with SPARK_HOME set to a Spark 4.1",
    )


def _key(name: str) -> str:
    """A file's name as a key of a ConfigMap or a Secret, which has no folders."""
    return name.replace("/", "__")


def _documents(*documents: dict[str, Any]) -> str:
    return yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True, width=120)
