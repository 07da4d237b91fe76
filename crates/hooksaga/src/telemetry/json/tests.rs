//! What a line looks like, to the byte, and that no value can break one.

use super::*;
use serde_json::{Value, json};
use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
};
use tracing::{debug, error, info, trace, warn};
use tracing_subscriber::layer::SubscriberExt;

/// The nanoseconds are cut, not rounded.
fn clock() -> Timestamp {
    Timestamp::new(1_709_210_096, 7_000_999).unwrap()
}

/// What `events` log.
fn logged(events: impl FnOnce()) -> String {
    let log = Arc::new(Mutex::new(String::new()));
    let to = Arc::clone(&log);
    let layer = JsonLines::new(clock, move |line| to.lock().unwrap().push_str(line));
    tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), events);
    std::mem::take(&mut *log.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The only record that `events` log.
fn record(events: impl FnOnce()) -> Value {
    let text = logged(events);
    let line = text.strip_suffix('\n').unwrap();
    assert!(!line.contains('\n'), "one line: {text}");
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

/// The line of an event at this level whose members between level and target are `members`.
fn line(level: &str, members: &str) -> String {
    format!(
        "{{\"timestamp\":\"2024-02-29T12:34:56.007000Z\",\"level\":\"{level}\",{members},\"target\":\"t\"}}\n"
    )
}

#[test]
fn every_kind_of_field_has_its_form() {
    #[derive(Debug)]
    #[expect(dead_code, reason = "only its Debug form is read")]
    struct Point {
        x: i32,
    }
    let failure = io::Error::other("disk \"full\"");
    let text = logged(|| {
        info!(
            target: "t",
            text = "plain",
            owned = String::from("own"),
            shown = %std::net::Ipv4Addr::LOCALHOST,
            debugged = ?Point { x: 1 },
            quoted = ?"q",
            signed = -5_i64,
            small = 204_u16,
            yes = true,
            no = false,
            ratio = 0.5,
            present = Some(7),
            absent = None::<i64>,
            failure = &failure as &(dyn std::error::Error + 'static),
            bytes = &[192_u8, 255][..],
            huge = u128::MAX,
            deep = i128::MIN,
            "took {} ms", 3
        );
    });
    let members = r#""message":"took 3 ms","text":"plain","owned":"own","shown":"127.0.0.1","debugged":"Point { x: 1 }","quoted":"\"q\"","signed":-5,"small":204,"yes":true,"no":false,"ratio":0.5,"present":7,"failure":"disk \"full\"","bytes":"[c0 ff]","huge":"340282366920938463463374607431768211455","deep":"-170141183460469231731687303715884105728""#;
    assert_eq!(text, line("INFO", members));
}

#[test]
fn every_level_has_its_name_and_every_record_its_line() {
    let text = logged(|| {
        error!(target: "t", "a");
        warn!(target: "t", "b");
        info!(target: "t", "c");
        debug!(target: "t", "d");
        trace!(target: "t", "e");
    });
    let expected = [("ERROR", "a"), ("WARN", "b"), ("INFO", "c"), ("DEBUG", "d"), ("TRACE", "e")];
    assert_eq!(text, expected.map(|(level, word)| line(level, &format!("\"message\":\"{word}\""))).concat());
}

#[test]
fn an_event_without_message_or_fields_is_an_object_too() {
    assert_eq!(logged(|| info!(target: "t", n = 1)), line("INFO", "\"n\":1"));
    assert_eq!(logged(|| info!(target: "t", absent = None::<u64>, n = 2)), line("INFO", "\"n\":2"));
    assert_eq!(record(|| info!(absent = None::<u64>))["target"], module_path!());
}

#[test]
fn numbers_are_exact_and_never_break_a_line() {
    let of = |value: i64| record(|| info!(n = value))["n"].clone();
    for value in [i64::MIN, -10, -1, 0, 1, 9, 10, 99, 100, 1_234_567_890, i64::MAX] {
        assert_eq!(of(value), json!(value));
    }
    assert_eq!(record(|| info!(n = u64::MAX))["n"], json!(u64::MAX));
    let of = |value: f64| record(|| info!(n = value))["n"].clone();
    for value in [0.0, -0.0, 1.0, 0.1, 1e-5, 1e300, 5e-324, f64::MIN, f64::MAX, 1e16] {
        assert!(of(value).is_f64());
        assert_eq!(of(value).as_f64().unwrap().to_bits(), value.to_bits());
    }
    for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        assert_eq!(of(value), Value::Null);
    }
}

#[test]
fn nasty_texts_come_back_unchanged() {
    let every_ascii: String = (0..=0x7f_u8).map(char::from).collect();
    let texts = [
        "",
        "\"",
        "\\",
        "\\\"\\",
        "\n",
        "a\nb",
        "\u{0}",
        "\u{1f}tail",
        "head\u{7f}",
        "ä\"ö\\ü",
        "\u{1f980}\"\u{10ffff}",
        "\u{2028}\u{2029}\u{feff}",
        "\u{1b}[31mred\u{1b}[0m",
        "{\"level\":\"ERROR\"}",
        every_ascii.as_str(),
    ];
    for text in texts {
        let as_text = record(|| info!(text));
        assert_eq!(as_text["text"], text);
        let as_display = record(|| info!(text = %text, "{text}"));
        assert_eq!((&as_display["text"], &as_display["message"]), (&json!(text), &json!(text)));
        assert_eq!(record(|| info!(text = ?text))["text"], format!("{text:?}"));
    }
}

#[test]
fn escapes_are_those_of_serde_json() {
    for character in (0..=0xff_u8).map(char::from) {
        let text = format!("a{character}b{character}");
        let mut line = String::new();
        push_escaped(&mut line, &text);
        assert_eq!(format!("\"{line}\""), serde_json::to_string(&text).unwrap());
    }
}

#[test]
fn odd_names_are_escaped_and_the_records_own_names_kept_free() {
    let odd = record(|| info!("a \"b\"\\\n" = 1, dotted.name = 2));
    assert_eq!((&odd["a \"b\"\\\n"], &odd["dotted.name"]), (&json!(1), &json!(2)));

    let taken = logged(|| info!(target: "t", message = "said", timestamp = 1, level = "x", target = true));
    assert_eq!(taken, line("INFO", r#""message":"said","timestamp_":1,"level_":"x","target_":true"#));
}

#[test]
fn a_value_may_log_fail_or_panic_while_it_is_shown() {
    /// Does to the memory of the line what a record within the record does.
    struct Logs;
    impl Debug for Logs {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let found = LINE.replace("the inner line".to_owned());
            write!(f, "found {found:?}")
        }
    }
    struct Fails;
    impl Debug for Fails {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("half \"")?;
            Err(fmt::Error)
        }
    }
    struct Panics;
    impl Debug for Panics {
        fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
            std::panic::resume_unwind(Box::new("shown"))
        }
    }
    let text = logged(|| {
        info!(target: "t", value = ?Logs);
        info!(target: "t", value = ?Fails, after = 1);
        assert!(std::panic::catch_unwind(|| info!(target: "t", value = ?Panics)).is_err());
        info!(target: "t", "next");
    });
    let members = [r#""value":"found \"\"""#, r#""value":"half \"","after":1"#, r#""message":"next""#];
    assert_eq!(text, members.map(|members| line("INFO", members)).concat());
}

#[test]
fn a_special_character_is_found_wherever_it_stands() {
    for length in 0..40 {
        let clean = "é~ x\u{7f}".chars().cycle().take(length).collect::<String>();
        assert!(!has_special(&clean), "{clean:?}");
        for at in clean.char_indices().map(|(at, _)| at) {
            for special in ('\0'..' ').chain(['"', '\\']) {
                let mut text = clean.clone();
                text.insert(at, special);
                assert!(has_special(&text), "{text:?}");
            }
        }
    }
}
