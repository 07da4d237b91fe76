//! The batches in which old events are archived and removed.

use super::Janitor;
use hooksaga_store::OldEvent;

/// Cuts events into batches of bounded rows and bytes; a larger event is a batch of its own.
pub(super) fn batches(events: &[OldEvent]) -> Vec<&[OldEvent]> {
    const MOST_BYTES: u64 = 8 << 20;
    let mut batches = Vec::new();
    let (mut start, mut rows, mut bytes) = (0, 0_u32, 0_u64);
    for (place, event) in events.iter().enumerate() {
        rows = rows.saturating_add(event.rows);
        bytes = bytes.saturating_add(event.payload_bytes);
        if place > start && (rows > Janitor::MOST_ROWS || bytes > MOST_BYTES) {
            batches.push(&events[start..place]);
            (start, rows, bytes) = (place, event.rows, event.payload_bytes);
        }
    }
    if start < events.len() {
        batches.push(&events[start..]);
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;
    use hooksaga_saga::EventId;

    fn event(id: i64, rows: u32, payload_bytes: u64) -> OldEvent {
        OldEvent { id: EventId(id), rows, payload_bytes }
    }

    fn ids(batches: &[&[OldEvent]]) -> Vec<Vec<i64>> {
        batches.iter().map(|batch| batch.iter().map(|event| event.id.0).collect()).collect()
    }

    #[test]
    fn batches_are_bounded_by_rows_and_bytes() {
        let small: Vec<_> = (1..=5).map(|id| event(id, 3, 10)).collect();
        assert_eq!(ids(&batches(&small)), [vec![1, 2, 3, 4, 5]]);
        let rows =
            [event(1, 1500, 1), event(2, 600, 1), event(3, 1400, 1), event(4, 100_000, 1), event(5, 3, 1)];
        assert_eq!(ids(&batches(&rows)), [vec![1], vec![2, 3], vec![4], vec![5]]);
        let bytes = [event(1, 1, 6 << 20), event(2, 1, 6 << 20), event(3, 1, 1)];
        assert_eq!(ids(&batches(&bytes)), [vec![1], vec![2, 3]]);
        assert!(batches(&[]).is_empty());
    }
}
