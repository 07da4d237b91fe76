//! What is in an archive.

use std::{collections::BTreeMap, fs, path::Path};

/// How often each event is in the archive, by the number that it carries, and with how many deliveries at most. Every
/// line is complete.
pub(super) fn archived(folder: &Path) -> BTreeMap<i64, (usize, usize)> {
    let mut found = BTreeMap::new();
    for (number, line) in archived_lines(folder) {
        let deliveries = line["deliveries"].as_array().unwrap();
        for delivery in deliveries {
            let (attempt, is_dead) = (&delivery["attempts"][0], delivery["status"] == "DeadLettered");
            assert!(
                attempt["response_status"] == 200 || is_dead && attempt["error_code"] == "TIMEOUT",
                "{line}"
            );
        }
        let (times, most) = found.entry(number).or_insert((0, 0));
        *times += 1;
        *most = deliveries.len().max(*most);
    }
    found
}

/// The events that were archived with dead letters that were sent again, and how many each has.
pub(super) fn archived_letters(folder: &Path) -> BTreeMap<i64, usize> {
    let mut found = BTreeMap::new();
    for (number, line) in archived_lines(folder) {
        let sagas: Vec<_> = line["deliveries"].as_array().unwrap().iter().map(|it| &it["saga_id"]).collect();
        let letters = line["dead_letters"].as_array().unwrap();
        for letter in letters {
            let its = [&letter["saga_id"], &letter["requeued_saga_id"]];
            assert!(its.iter().all(|saga| sagas.contains(saga)), "{letter}");
        }
        if !letters.is_empty() {
            found.insert(number, letters.len());
        }
    }
    found
}

/// Each line with the number that is in its event's payload.
fn archived_lines(folder: &Path) -> Vec<(i64, serde_json::Value)> {
    let mut lines = Vec::new();
    for entry in fs::read_dir(folder.join("archive")).unwrap() {
        let file = fs::File::open(entry.unwrap().path()).unwrap();
        let text = String::from_utf8(zstd::decode_all(file).unwrap()).unwrap();
        for line in text.lines() {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            let payload = line["event"]["payload"].as_str().unwrap();
            let id = serde_json::from_str::<serde_json::Value>(payload).unwrap()["n"].as_i64().unwrap();
            assert_eq!(payload, format!("{{ \"n\": {id} }}"), "byte for byte");
            lines.push((id, line));
        }
    }
    lines
}
