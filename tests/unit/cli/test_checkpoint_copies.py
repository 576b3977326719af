"""`checkpoint backup` and `restore` as they are typed, on a checkpoint and tables without Spark."""

from __future__ import annotations

import json
from pathlib import Path

from tests.unit.ops.test_checkpoint_restore import Situation
from typer.testing import CliRunner

from penstock.cli.main import app


def penstock(*words: str) -> str:
    done = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_backup_and_restore_say_what_they_do_and_dry_runs_do_nothing(tmp_path: Path) -> None:
    situation, file = Situation(tmp_path), str(tmp_path / "orders.yaml")
    for batch in range(3):
        situation.run(batch)
    place = f"{situation.root}-backups"
    assert "would copy 8 files up to batch 2" in penstock("checkpoint", "backup", file, "--dry-run").replace("\n", " ")
    assert "no backups yet" in penstock("checkpoint", "backup", file, "--list")
    assert "up to batch 2" in penstock("checkpoint", "backup", file)
    second = json.loads(penstock("checkpoint", "backup", file, "--keep", "1", "--json"))
    assert (second["batch"], len(second["removed"])) == (2, 1)
    listed = json.loads(penstock("checkpoint", "backup", file, "--list", "--json"))
    assert [one["path"] for one in listed] == [second["path"]]
    for batch in range(3, 6):
        situation.run(batch)
    planned = json.loads(penstock("checkpoint", "restore", file, "--dry-run", "--json"))
    assert (planned["forward"]["batch_id"], planned["runs_again"], planned["saved"]) == (5, False, None)
    assert situation.checkpoint.last_committed() == 5
    told = penstock("checkpoint", "restore", file, "--from", Path(second["path"]).name)
    assert "advanced to batch 5, which every sink has" in told
    saved = next(line.split()[-1] for line in told.splitlines() if line.startswith("  saved"))
    assert Path(saved).parent == Path(place)
    assert situation.logs() == {"offsets": [4, 5], "commits": [4, 5]}
