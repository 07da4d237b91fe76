//! `hooksaga history`: archives are listed and searched, also after a crash of whoever wrote them.

use crate::support::*;
use std::{fs, process::Output};

pub(super) fn line(id: u32, tenant: &str, external_id: &str) -> String {
    json!({
        "event": {
            "id": id, "tenant": tenant, "event_type": "order.created", "external_id": external_id,
            "correlation_id": format!("c-{id}"), "created_at": format!("2026-01-{id:02}T12:00:00.000000Z"),
            "payload": format!("{{ \"order\":{id} }}"),
        },
        "deliveries": [{
            "saga_id": 100 + id, "subscription_id": 3, "callback_url": "https://shop.example/in", "generation": 0,
            "status": "DeadLettered", "attempt_count": 1, "max_retry_limit": 1,
            "attempts": [{
                "job_id": 1000 + id, "attempt_at": "2026-01-01T12:00:01.000000Z", "status": "Failed",
                "response_status": 500, "error_code": "HTTP_500", "duration_ms": 12,
                "response_excerpt": "sorry\u{1b}[2J",
            }],
        }],
        "dead_letters": [{
            "id": id, "saga_id": 100 + id, "final_error_code": "HTTP_500",
            "created_at": "2026-01-01T12:00:02.000000Z", "requeued_saga_id": null,
        }],
    })
    .to_string()
}

pub(super) fn frame(lines: &[String]) -> Vec<u8> {
    zstd::encode_all(format!("{}\n", lines.join("\n")).as_bytes(), 3).unwrap()
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr))
}

#[tokio::test]
async fn archives_are_listed_and_searched_and_a_torn_end_is_said() {
    let place = Installation::sqlite();
    let path = |name: &str| place.folder.path().join(name);
    let first = [frame(&[line(1, "acme", "o-1"), line(2, "acme", "o-2")]), frame(&[line(3, "other", "o-3")])]
        .concat();
    fs::write(path("a.ndjson.zst"), first).unwrap();
    let torn = frame(&[line(5, "acme", "o-5")]);
    let second = [frame(&[line(4, "acme", "o-4")]), torn[..torn.len() - 7].to_vec()].concat();
    fs::write(path("b.ndjson.zst"), second).unwrap();
    let files = ["b.ndjson.zst", "a.ndjson.zst"];

    let list = run(&place, &[&["history", "list"][..], &files].concat()).await;
    let (stdout, stderr) = texts(&list);
    assert_eq!(list.status.code(), Some(0), "{stderr}");
    let ids: Vec<&str> = stdout.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(ids, ["4", "1", "2", "3"], "{stdout}");
    assert!(stdout.contains("1 DeadLettered"), "{stdout}");
    assert!(stderr.contains("b.ndjson.zst") && stderr.contains("breaks off after line 1"), "{stderr}");

    let search = async |arguments: &[&str]| {
        let output = run(&place, &[&["history", "search"], arguments, &files].concat()).await;
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        texts(&output).0
    };
    let found = search(&["--external-id", "o-2", "--json"]).await;
    assert_eq!(found.trim_end(), line(2, "acme", "o-2"), "the line as it is");
    let tenant = search(&["--tenant", "acme", "--since", "2026-01-02T00:00:00Z", "--json"]).await;
    assert_eq!(tenant.lines().count(), 2, "{tenant}");
    let shown = search(&["--id", "evt_3"]).await;
    for word in
        ["{ \"order\":3 }", "https://shop.example/in", "HTTP_500", "Dead letters", "a.ndjson.zst, line 3"]
    {
        assert!(shown.contains(word), "{word} in {shown}");
    }
    assert_eq!(search(&["--type", "order.paid"]).await, "");

    let missing = run(&place, &["history", "list", "none.zst", "a.ndjson.zst"]).await;
    let (stdout, stderr) = texts(&missing);
    assert_eq!(missing.status.code(), Some(1), "{missing:?}");
    assert!(stderr.starts_with("hooksaga: cannot read none.zst"), "{stderr}");
    assert_eq!(stdout.lines().count(), 4, "the other one is read all the same: {stdout}");
    fs::write(path("other.txt"), "what is this?\n").unwrap();
    let other = run(&place, &["history", "list", "other.txt", "a.ndjson.zst"]).await;
    let (stdout, stderr) = texts(&other);
    assert_eq!(other.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("no archived events") && stdout.lines().count() == 4, "{stdout}{stderr}");
}
