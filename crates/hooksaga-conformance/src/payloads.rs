//! A payload is the same, byte for byte, wherever it is read.

use super::{
    TestDatabase,
    fixture::{
        ALL, AT_ONCE, MANY, TOKEN, TYPE, URL, append, claim, deliver_round, external_id, failed, new_event,
        only, route, schedule_and_mark, verified_with_limit,
    },
};
use hooksaga_saga::ErrorCode;
use hooksaga_store::{Appended, NewEvent};
use std::sync::Arc;

/// One event's payload through every stage: stored, shown, claimed, and copied into the dead letter.
async fn survives(db: &dyn TestDatabase, n: usize, payload: &str) {
    let stores = db.stores();
    let shown = |text: &str| text.chars().take(60).collect::<String>();
    let event = NewEvent {
        payload: Arc::from(payload),
        external_id: Some(external_id(&format!("x-{n}"))),
        ..new_event(TYPE)
    };
    let head = append(&stores, event.clone()).await;
    let detail = stores.reader.event(&ALL, head.id).await.unwrap().expect("it is there");
    assert!(*detail.payload == *payload, "the event shows {:?}", shown(&detail.payload));

    let again = only(stores.ingest.append(&[event]).await.unwrap());
    assert_eq!(again, Appended::Duplicate(head.clone()), "and is recognised again");

    only(route(&stores).await);
    schedule_and_mark(&stores).await;
    let job = only(claim(&stores, TOKEN).await.jobs);
    assert!(*job.held.payload == *payload, "the claim has {:?}", shown(&job.held.payload));
    stores.worker.report(&[failed(job.as_ref(), ErrorCode::TIMEOUT)]).await.unwrap();
    super::fixture::apply(&stores, AT_ONCE).await;

    let letter = only(stores.dead_letters.bury(MANY).await.unwrap()).dead_letter_id.expect("it is new");
    let letter = stores.reader.dead_letter(&ALL, letter).await.unwrap().expect("it is there");
    assert!(*letter.payload == *payload, "the letter has {:?}", shown(&letter.payload));
}

async fn all_survive(db: &dyn TestDatabase, payloads: &[&str]) {
    verified_with_limit(&db.stores(), URL, 1).await;
    for (n, payload) in payloads.iter().enumerate() {
        survives(db, n, payload).await;
    }
    assert_eq!(deliver_round(&db.stores(), None, AT_ONCE).await.results, []);
}

pub async fn keys_keep_their_order_and_their_duplicates(db: &dyn TestDatabase) {
    all_survive(db, &[r#"{"b":1,"a":2,"b":3}"#, r#"{"z":{"y":1,"y":1},"a":[],"Z":0}"#]).await;
}

pub async fn whitespace_is_kept(db: &dyn TestDatabase) {
    all_survive(db, &["  {\t\"a\" :\r\n1 , \"b\":[ ] }\n\n", "1 ", "\n[1]", "\"  blanks  \""]).await;
}

pub async fn numbers_are_kept_as_they_were_written(db: &dyn TestDatabase) {
    let digits = "1234567890".repeat(20);
    let long = format!("[{digits}, -{digits}.{digits}, 1{digits}e-999]");
    all_survive(db, &["1e400", "[1.0, 1.00, 1E+2, 1e2, 100, -0, -0.0, 0.1e-400]", &long]).await;
}

pub async fn escapes_are_kept(db: &dyn TestDatabase) {
    let payloads = [
        r#""\u0000""#,
        r#"{"\u0000":"a\u0000b"}"#,
        r#"["\ud800", "\udfff\ud800", "\ud83d\ude00"]"#,
        r#""\/ / \" \\ \b\f\n\r\t \u0041 A""#,
        r#"{"it's":"a 'quoted' %s ? $1 :name \\' -- text"}"#,
    ];
    all_survive(db, &payloads).await;
}

pub async fn characters_beyond_the_basic_plane_are_kept(db: &dyn TestDatabase) {
    let payloads = [
        "\"😀 𝕏 🏳️‍🌈 𐍈\"",
        "{\"ключ\":\"значение\",\"é\":1,\"e\u{301}\":2}",
        "\"\u{7f}\u{80}\u{2028}\u{fffd}\u{fffe}\u{10ffff}\u{feff}\"",
    ];
    all_survive(db, &payloads).await;
}

pub async fn deep_nesting_is_kept(db: &dyn TestDatabase) {
    let arrays = format!("{}{}", "[".repeat(128), "]".repeat(128));
    let objects = format!("{}1{}", r#"{"a":"#.repeat(128), "}".repeat(128));
    all_survive(db, &[&arrays, &objects]).await;
}

pub async fn scalars_are_payloads_too(db: &dyn TestDatabase) {
    all_survive(db, &["null", "true", "false", "0", "\"\"", "[]", "{}"]).await;
}

pub async fn a_mebibyte_is_kept(db: &dyn TestDatabase) {
    let ascii = format!("\"{}\"", "x".repeat((1 << 20) - 2));
    let wide = format!("\"{}\"", "😀".repeat((1 << 18) - 1));
    assert_eq!(ascii.len(), 1 << 20);
    all_survive(db, &[&ascii, &wide]).await;
}
