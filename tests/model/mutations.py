"""Deliberate mistakes in the rules, each with the family of actions that has to show it.

The first group is in the decision function and in the position after a commit, the second in the protocol around them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from tests.model.world import Rules

from penstock.model import BatchToken, Position, Rule, Verdict, decide


class Mutation(NamedTuple):
    """One mistake."""

    scenario: str
    rules: Rules


def _instead(scenario: str, wrong: Verdict, right: Verdict) -> Mutation:
    """One verdict in place of another."""

    def mutated(held: Position | None, token: BatchToken, least: int) -> Verdict:
        verdict = decide(held, token, least)
        return wrong if verdict is right else verdict

    return Mutation(scenario, Rules(decide=mutated))


def _about(scenario: str, change: Callable[[Position, BatchToken], tuple[Position, BatchToken]]) -> Mutation:
    """The decision about something else than what is held, and what is to be committed."""

    def mutated(held: Position | None, token: BatchToken, least: int) -> Verdict:
        return decide(None, token, least) if held is None else decide(*change(held, token), least)

    return Mutation(scenario, Rules(decide=mutated))


def _ruled(scenario: str, rule: Rule) -> Mutation:
    """A batch under this rule is judged as one that has to follow the position."""
    return _about(
        scenario, lambda held, token: (held, replace(token, rule=Rule.FOLLOWS) if token.rule is rule else token)
    )


def _committed_twice(scenario: str, *, same: bool) -> Mutation:
    """A batch that is committed is the next: this very batch, or an older one."""

    def mutated(held: Position | None, token: BatchToken, least: int) -> Verdict:
        verdict = decide(held, token, least)
        wrong = verdict is Verdict.COMMITTED and held is not None and (held.last == token) is same
        return Verdict.NEXT if wrong else verdict

    return Mutation(scenario, Rules(decide=mutated))


def _after(scenario: str, change: Callable[[Position | None, BatchToken, Position], Position]) -> Mutation:
    """Another position after a commit."""
    return Mutation(
        scenario,
        Rules(after=lambda held, token, least: change(held, token, Position.after(held, token, least))),
    )


MUTATIONS: dict[str, Mutation] = {
    # The decision.
    "target behind the batch is taken for the next": _instead("restored", Verdict.NEXT, Verdict.TARGET_WENT_BACK),
    "target ahead by another query is taken for the next": _instead("fork", Verdict.NEXT, Verdict.FENCED),
    "target ahead by another query is taken for committed": _instead("resumed", Verdict.COMMITTED, Verdict.FENCED),
    "target ahead by the same query is taken for the next": _instead(
        "checkpoint back", Verdict.NEXT, Verdict.CHECKPOINT_WENT_BACK
    ),
    "target ahead by the same query is taken for committed": _instead(
        "checkpoint back", Verdict.COMMITTED, Verdict.CHECKPOINT_WENT_BACK
    ),
    "same batch with other ranges is taken for committed": _instead(
        "checkpoint back", Verdict.COMMITTED, Verdict.TOKEN_MISMATCH
    ),
    "same batch with other ranges is taken for the next": _instead(
        "checkpoint back", Verdict.NEXT, Verdict.TOKEN_MISMATCH
    ),
    "same batch is committed again": _committed_twice("takeover", same=True),
    "older batch of the same query is committed again": _committed_twice("checkpoint back", same=False),
    "quarantine has to follow without gaps": _ruled("takeover", Rule.FORWARD),
    "commits by record have to follow": _ruled("replay taken back", Rule.RECORDS),
    "moved position has to follow": _ruled("all back", Rule.MOVES),
    "topic ids are not compared": _about(
        "topic again with two runs",
        lambda held, token: (replace(held, topic_ids={}), replace(token, topic_ids={})),
    ),
    "former id of a topic is taken for a new topic": _about(
        "topic again with two runs",
        lambda held, token: (replace(held, topic_ids={t: ids[-1:] for t, ids in held.topic_ids.items()}), token),
    ),
    "number of commits that a target has had is not compared": Mutation(
        "older quarantine", Rules(decide=lambda held, token, least: decide(held, token, 0))
    ),
    # The position after a commit.
    "position is the end of the last batch alone": _after(
        "topic left out", lambda held, token, after: replace(after, next=token.ends)
    ),
    "position keeps the first id of a topic": _after(
        "topic again with two runs",
        lambda held, token, after: replace(after, topic_ids=held.topic_ids if held is not None else after.topic_ids),
    ),
    "commits are not counted": _after("older quarantine", lambda held, token, after: replace(after, number=1)),
    "number that a commit carries is forgotten": _after(
        "older quarantine", lambda held, token, after: replace(after, last=replace(after.last, quarantine={}))
    ),
    "quarantine that was brought forward keeps its number": Mutation(
        "quarantine", Rules(after=lambda held, token, least: Position.after(held, token, 0))
    ),
    # The protocol.
    "commit lands without comparing": Mutation("takeover", Rules(land_compares=False)),
    "quarantine is committed after the sinks": Mutation("sinks", Rules(quarantine_first=False)),
    "quarantined records are not binding": Mutation("sinks", Rules(binding=False)),
    "quarantined records of other batches are not binding": Mutation(
        "target and checkpoint back", Rules(binds_by_record=False)
    ),
    "newly bad records are not added": Mutation("takeover", Rules(additions=False)),
    "records are quarantined for sinks that have the batch": Mutation("sinks", Rules(committed_are_kept=False)),
    "targets are not taken over": Mutation("takeover", Rules(takes_over=False)),
    "staged rows land onto a position that moved": Mutation("takeover", Rules(stages_again=False)),
    "replays in place carry no number": Mutation("replay taken back", Rules(carries=False)),
    "quarantine is brought forward after the sinks": Mutation("all back", Rules(recovers_first=False)),
    "quarantine is not asked for records before its position": Mutation("replay taken back", Rules(recovers_all=False)),
    "quarantine is not asked for records of an open batch": Mutation("quarantine", Rules(recovers_open=False)),
    "quarantine is brought forward in several commits": Mutation("two records back", Rules(recovers_at_once=False)),
    "catching up brings what is there already": Mutation("restored", Rules(catch_up_asks=False)),
    "redrive does not ask the target": Mutation("redrive", Rules(redrive_asks=False)),
    "redrive believes its marks": Mutation("redrive taken back", Rules(marks_are_hints=False)),
    "redrive lands onto a position read after asking": Mutation("redrive", Rules(redrive_compares=False)),
    "redrive takes records that the stream has not reached": Mutation(
        "redrive of an open batch", Rules(redrive_waits=False)
    ),
    "redrives do not wait for replays in place": Mutation("replay", Rules(replay_holds=False)),
    "replay has another identity each time": Mutation("replay elsewhere", Rules(replay_identity=False)),
    "replay in place removes the rows of other pipelines": Mutation("shared table", Rules(replay_refuses_others=False)),
    "resuming does not ask the quarantine": Mutation("resumed", Rules(resume_asks_quarantine=False)),
    "number of commits at the start of a run is forgotten": Mutation(
        "older copy at a start", Rules(start_counts=False)
    ),
    "emptied target is taken for a new one": Mutation("older copy", Rules(reads_hints=False)),
    "renamed sink is taken for a new one": Mutation("renamed", Rules(notices_rename=False)),
}
