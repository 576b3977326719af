"""Data loss is found exactly; holes and quiet partitions are none."""

from penstock.kafka import LogBounds
from penstock.model import OffsetRange, TopicPartition
from penstock.preflight.loss import clip_to_log, data_loss, log_findings, ranges_of_batch

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_loss_log_covers_the_batch_is_none() -> None:
    batch = ranges_of_batch({P0: 5, P1: 0}, {P0: 9, P1: 0})
    readable, gaps = clip_to_log(batch, {P0: LogBounds(0, 20), P1: LogBounds(0, 0)})
    assert readable == [OffsetRange("t", 0, 5, 9)]
    assert gaps == []


def test_loss_log_start_passed_gives_the_exact_gap() -> None:
    readable, gaps = clip_to_log(ranges_of_batch({P0: 5}, {P0: 9}), {P0: LogBounds(7, 20)})
    assert readable == [OffsetRange("t", 0, 7, 9)]
    assert [(g.start, g.end) for g in gaps] == [(5, 7)]


def test_loss_whole_range_gone_is_one_gap() -> None:
    readable, gaps = clip_to_log(ranges_of_batch({P0: 5}, {P0: 9}), {P0: LogBounds(30, 40)})
    assert readable == []
    assert [(g.start, g.end) for g in gaps] == [(5, 9)]


def test_loss_log_end_behind_the_batch_is_a_gap_at_the_tail() -> None:
    readable, gaps = clip_to_log(ranges_of_batch({P0: 5}, {P0: 9}), {P0: LogBounds(0, 6)})
    assert readable == [OffsetRange("t", 0, 5, 6)]
    assert [(g.start, g.end) for g in gaps] == [(6, 9)]


def test_loss_recreated_topic_is_read_from_its_beginning() -> None:
    batch = ranges_of_batch({P0: 500}, {P0: 20})
    readable, gaps = clip_to_log(batch, {P0: LogBounds(3, 20)})
    assert readable == [OffsetRange("t", 0, 3, 20)]
    assert [(g.start, g.end) for g in gaps] == [(500, None)]


def test_loss_vanished_partition_is_a_gap_without_an_end() -> None:
    batch = ranges_of_batch({P0: 5, P1: 7}, {P0: 5})
    assert [(g.partition, g.start, g.end) for g in batch.gaps] == [(1, 7, None)]


def test_loss_new_partition_begins_at_zero() -> None:
    batch = ranges_of_batch({P0: 5}, {P0: 5, P1: 4})
    assert OffsetRange("t", 1, 0, 4) in batch.ranges
    assert batch.gaps == ()


def test_finding_of_lost_records_blocks_only_where_the_pipeline_does_not_record_them() -> None:
    bounds = {P0: LogBounds(7, 20)}
    [fails] = log_findings({P0: 5}, bounds, "fail")
    [records] = log_findings({P0: 5}, bounds, "record")
    assert fails.code == records.code == "OFFSETS_BEFORE_LOG"
    assert (fails.blocks, records.blocks) == (True, False)
    assert fails.way_out
    assert not records.way_out


def test_data_loss_error_names_every_range() -> None:
    _, gaps = clip_to_log(ranges_of_batch({P0: 5, P1: 1}, {P0: 9, P1: 2}), {P0: LogBounds(7, 20)})
    error = data_loss(gaps, 3)
    assert error.code == "DATA_LOSS"
    assert list(error.context) == ["t[0] 5-7", "t[1] 1-2"]
