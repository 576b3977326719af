"""The current flows of a run: staged by their lanes, following the registries for `latest`.

The registries are queried before a batch is staged. A newer schema that the tables accept is used at once: new columns
appear without a restart, or stop the run if a sink has `evolve: fail`. Types that the tables reject are reported: the
decoders keep the last schema that fits, and records that it cannot read go to the quarantine with both types named. An
unreachable registry stops nothing as long as every schema in the batch is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.assembly.build import Flow, Pipeline, as_nullable
from penstock.assembly.faults import refused_step, translate_error
from penstock.assembly.schemas import Place, SchemaUpdates, registered
from penstock.assembly.starting import pinned_slots
from penstock.assembly.tables import Lookups
from penstock.assembly.transforming import PlacedStep
from penstock.config import reveal
from penstock.contracts import Transform
from penstock.engine.direct import can_share, stage_direct
from penstock.engine.work import SlotWork, StagedFlow, StageLane
from penstock.errors import DefinitionError, MissingError, PenstockError, TransientError, transient_is_fatal
from penstock.model import BatchToken
from penstock.registry import RegisteredSchema
from penstock.spark.sql import SparkSql
from penstock.transforms import Join

if TYPE_CHECKING:
    from penstock.engine.stream import Stream

_MISMATCH = "SINK_SCHEMA_MISMATCH"


@dataclass
class CurrentFlows:
    """Provides the flows of each batch. `prepare` is called first, and prepares the sinks."""

    pipeline: Pipeline
    session: Any
    tell: Callable[[str], None]
    late_by: Callable[[int], int] = lambda batch_id: 0
    """The watermark for late rows of a batch, in milliseconds."""
    pinned: int | None = None
    _schemas: tuple[pa.Schema, ...] = ()
    """The columns that reach the inlets of each flow."""
    staged: tuple[StagedFlow, ...] = ()
    """The flows as last built."""
    stream: Stream | None = None
    """The streaming frame of a stateful flow; built by `prepare`, for every start of the query."""
    _refused: dict[Place, RegisteredSchema] = field(default_factory=dict)
    """The newest schema of each decoder that the tables rejected."""
    stale: bool = False
    """Whether the streaming frame was built with a table that has changed since."""

    @cached_property
    def _updates(self) -> SchemaUpdates:
        """The decoders that follow newer schemas. With state the columns do not change."""
        if any(flow.layout() is not None for flow in self.pipeline.flows):
            return SchemaUpdates({})
        return SchemaUpdates({place: one for place, one in registered(self.pipeline.config).items() if one.follows})

    @cached_property
    def _lookups(self) -> Lookups:
        sides = (step for flow in self.pipeline.flows for side in flow.sides for step in side.transforms)
        steps = (*sides, *(step for flow in self.pipeline.flows for step in flow.steps))
        return Lookups(self.pipeline.tables, steps, self.session, self.tell)

    def prepare(self, cores: int = 1) -> None:
        """Make every sink ready for the newest schemas that it takes, and put the flows together.

        Sinks that commit in their slot pin the number of slots, at first to that of the cores.
        """
        for flow in self.pipeline.flows:
            for inlet in flow.inlets:
                if inlet.sink.needs_sql:
                    inlet.sink.use(SparkSql(self.session, reveal(self.pipeline.config.spark)))
        with transient_is_fatal():
            self._lookups.refresh()
            if self.session is not None:
                self._lookups.views(self.session)
            self._prepare_sinks(*self._fitting())
        if self.pinned is None:
            self.pinned = pinned_slots(self.pipeline, cores, self._schemas, self.tell)
        self.stage()

    def stage(self) -> None:
        """Build the work of each flow's tasks, for the current schemas."""
        pipeline = self.pipeline
        reading: set[Place] = set()
        staged: list[StagedFlow] = []
        for flow, schema in zip(pipeline.flows, self._schemas, strict=True):
            stage: StageLane = stage_direct
            layout = flow.layout()
            if layout is not None:
                stage = partial(self._stage_stream, after=self._lookups.held(flow.steps[layout.after :]))
            elif flow.lane.lane == "frame":
                from penstock.engine.frame import stage_frame

                stage = partial(stage_frame, steps=self._lookups.held(flow.steps), views=self._lookups.views)
            feed = (*flow.config.decode_path, *(flow.config.topics or ()))
            work = SlotWork(
                token=BatchToken(pipeline.config.name, "", 0, ()),
                reader=pipeline.reader,
                decoder=flow.decoder,
                transforms=self._lookups.held(flow.steps) if stage is stage_direct else (),
                inlets=flow.inlets,
                quarantines=pipeline.quarantines,
                schema=schema,
                tombstones=flow.tombstones(schema),
                deleting=flow.deleting,
                pinned=self.pinned,
                route=flow.name,
                counts=feed not in reading,
            )
            reading.add(feed)
            topics = frozenset(flow.config.topics) if flow.config.topics else None
            before = next((at for at, other in enumerate(staged) if _shares(other, stage, work, topics)), None)
            if before is None:
                staged.append(
                    StagedFlow(stage, (work,), topics, streaming=layout is not None, direct=stage is stage_direct)
                )
            else:
                staged[before] = replace(staged[before], works=(*staged[before].works, work))
        self.staged = tuple(staged)

    def new_stream(self) -> Stream | None:
        """The streaming frame for a start of the query, if a flow is stateful."""
        layout = next((found for flow in self.pipeline.flows if (found := flow.layout()) is not None), None)
        if layout is not None:
            from penstock.engine.stream import Stream

            self.stream, self.stale = Stream.over(self.session, layout.with_steps(self._lookups.held)), False
        return self.stream

    def _stage_stream(self, frame: Any, works: Sequence[SlotWork], _: object, after: Sequence[Transform]) -> Any:
        assert self.stream is not None, "made before the query starts"
        [work] = works
        self._lookups.views(frame.sparkSession)
        return self.stream.stage(frame, work, self.late_by(work.token.batch_id), after)

    def now(self) -> tuple[StagedFlow, ...]:
        """The flows for the current batch."""
        fresh = self._lookups.refresh()
        if fresh:
            if self.stream is not None and any(name in fresh for name in self.stream.layout.tables):
                self.stale = True
                raise TransientError("TABLE_CHANGED", "a table joined before the state has changed")
            self.stage()
        was_away, newest = self._updates.away, self._updates.newest(self._known)
        if newest is None:
            if not was_away and self._updates.away is not None:
                self.tell(f"continuing with the known schemas: {self._updates.away.summary}")
            return self._frozen()
        for place, schema in newest.items():
            if schema is not self._known(place):
                self._adopt(place, schema)
        return self.staged

    def try_again(self) -> None:
        """A batch is retried: it may have waited for a registry."""
        self._updates.ask_at_once()

    def _known(self, place: Place) -> RegisteredSchema:
        return self._refused.get(place, self.pipeline.schemas[place])

    def _adopt(self, place: Place, schema: RegisteredSchema) -> None:
        try:
            newer = self.pipeline.reading({**self.pipeline.schemas, place: schema})
            if [flow.lane.lane for flow in newer.flows] != [flow.lane.lane for flow in self.pipeline.flows]:
                self._decline(place, schema, "it needs the other lane, which requires a restart")
                return
            schemas = self._columns(newer)
            _check_sinks(newer, schemas)
        except (MissingError, DefinitionError) as error:
            if error.code == _MISMATCH and _only_lacks(newer, schemas, self._schemas):
                raise
            self._decline(place, schema, error.line)
            return
        self._refused.pop(place, None)
        added = sorted(_decoded_names(newer) - _decoded_names(self.pipeline))
        self._prepare_sinks(newer, schemas)
        self.stage()
        self.tell(f"{_named(schema)} is now used" + (f": new columns {', '.join(added)}" if added else ""))

    def _decline(self, place: Place, schema: RegisteredSchema, why: str) -> None:
        """Stay at the schema before this one."""
        self._refused[place] = schema
        self.tell(f"{_named(schema)} is not used: {why}")

    def _frozen(self) -> tuple[StagedFlow, ...]:
        frozen = self.pipeline.reading(self.pipeline.schemas, frozen=True)
        decoders = {id(now.decoder): then.decoder for now, then in zip(self.pipeline.flows, frozen.flows, strict=True)}
        return tuple(
            replace(staged, works=tuple(replace(work, decoder=decoders[id(work.decoder)]) for work in staged.works))
            for staged in self.staged
        )

    def _fitting(self) -> tuple[Pipeline, tuple[pa.Schema, ...]]:
        """The pipeline with the newest schemas that the sinks take, and its columns; or the refusal of the newest."""
        newest, schemas = self.pipeline, self._columns(self.pipeline)
        try:
            _check_sinks(newest, schemas)
            return newest, schemas
        except MissingError as error:
            if error.code != _MISMATCH:
                raise
            refusal = error
        for place, one in self._updates.items():
            refused = newest.schemas[place]
            for older in one.older(refused):
                try:
                    candidate = newest.reading({**newest.schemas, place: older})
                    columns = self._columns(candidate)
                    _check_sinks(candidate, columns)
                except (MissingError, DefinitionError):
                    continue
                if _only_lacks(newest, schemas, columns):
                    raise refusal
                self._refused[place] = refused
                self.tell(f"{_named(refused)} is not used, still reading with version {older.version}: {refusal.line}")
                return candidate, columns
        raise refusal

    def _prepare_sinks(self, pipeline: Pipeline, schemas: tuple[pa.Schema, ...]) -> None:
        """Make the sinks ready for a pipeline, which is the one in force from now on."""
        for flow, schema in zip(pipeline.flows, schemas, strict=True):
            for inlet in flow.inlets:
                inlet.sink.prepare(inlet.schema(schema))
        self.pipeline, self._schemas = pipeline, schemas

    def _columns(self, pipeline: Pipeline) -> tuple[pa.Schema, ...]:
        return tuple(self._schema(flow) for flow in pipeline.flows)

    def _schema(self, flow: Flow) -> pa.Schema:
        """The columns that reach the inlets of a flow."""
        if flow.lane.lane == "direct":
            found = flow.schema
            assert found is not None, "the direct lane knows its columns"
            return found
        return as_nullable(self._schema_by_spark(flow))

    def _schema_by_spark(self, flow: Flow) -> pa.Schema:
        """The columns that leave the last step; a step that Spark refuses is named."""
        if flow.sides:
            from penstock.engine.frame import schema_joined

            sides = {side.name: self._through(side.decoder.schema, side.placed) for side in flow.sides}
            [join, *others] = flow.placed
            assert isinstance(join.transform, Join)
            try:
                entering = schema_joined(self.session, join.transform, sides)
            except Exception as error:
                raise refused_step(join.place, join.transform, error) from error
        else:
            entering, others = flow.decoder.schema, list(flow.placed)
        computed = [PlacedStep("", flow.computed)] if flow.computed is not None else []
        return self._through(entering, [*others, *computed], flow.name)

    def _through(self, schema: pa.Schema, placed: Sequence[PlacedStep], name: str = "") -> pa.Schema:
        from penstock.engine.frame import schema_after

        steps = [one.transform for one in placed]
        try:
            return schema_after(self.session, schema, steps)
        except Exception as error:
            for number, one in enumerate(placed):
                try:
                    schema_after(self.session, schema, steps[: number + 1])
                except PenstockError:
                    raise
                except Exception as refusal:
                    place = f"{name}.{one.place}" if name and one.place else one.place or "where"
                    raise refused_step(place, one.transform, refusal) from refusal
            raise translate_error(error) from error


def _shares(staged: StagedFlow, stage: StageLane, work: SlotWork, topics: frozenset[str] | None) -> bool:
    """Whether a flow can go along with one that is staged: then its records are read and decoded once."""
    return (
        stage is stage_direct
        and staged.stage is stage_direct
        and staged.topics == topics
        and can_share(staged.works[0], work)
    )


def _check_sinks(pipeline: Pipeline, schemas: Sequence[pa.Schema]) -> None:
    for flow, schema in zip(pipeline.flows, schemas, strict=True):
        for inlet in flow.inlets:
            inlet.sink.check(inlet.schema(schema))


def _only_lacks(newer: Pipeline, schemas: Sequence[pa.Schema], older: Sequence[pa.Schema]) -> bool:
    """Whether the sinks refuse a newer schema only because of new columns: `evolve: fail` should then stop the run."""
    kept = [pa.schema([f for f in new if f.name in old.names]) for new, old in zip(schemas, older, strict=True)]
    try:
        _check_sinks(newer, kept)
    except MissingError:
        return False
    return True


def _named(schema: RegisteredSchema) -> str:
    return f"{schema.subject} version {schema.version}"


def _decoded_names(pipeline: Pipeline) -> set[str]:
    return {name for flow in pipeline.flows for name in flow.decoder.schema.names}
