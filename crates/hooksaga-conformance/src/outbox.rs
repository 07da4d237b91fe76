//! The transactional outbox, as an application sees it, for the back ends that have one. Each back end calls these cases
//! from its own tests, as a login that may execute `hooksaga_append` and nothing else.

use crate::{
    TestDatabase,
    fixture::{asked, create, new_subscription, verify},
    rows::count,
};
use async_trait::async_trait;
use hooksaga_saga::{CorrelationId, EventId, EventType, ExternalId, Tenant};
use hooksaga_store::{
    Appended, DeliveryFilter, EventFilter, IndexedList, NewEvent, PageRequest, RouteLimits, StepLimits,
    TenantScope,
};
use std::time::{Duration, Instant};

/// What an application passes to `hooksaga_append`.
#[derive(Clone, Debug)]
pub struct AppendCall {
    pub event_type: Option<String>,
    pub payload: Option<String>,
    pub external_id: Option<String>,
    pub tenant: Option<String>,
    pub correlation_id: Option<String>,
}

impl AppendCall {
    /// An event with the defaults.
    pub fn new(payload: &str) -> Self {
        Self {
            event_type: Some("order.created".to_owned()),
            payload: Some(payload.to_owned()),
            external_id: None,
            tenant: None,
            correlation_id: None,
        }
    }

    /// The same with an external id.
    pub fn once(payload: &str, external_id: &str) -> Self {
        Self { external_id: Some(external_id.to_owned()), ..Self::new(payload) }
    }
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raised {
    pub sqlstate: String,
    pub message: String,
}

/// A session of an application.
#[async_trait]
pub trait Application: Send {
    async fn append(&mut self, call: &AppendCall) -> Result<i64, Raised>;
    /// Any statement.
    async fn execute(&mut self, sql: &str) -> Result<(), Raised>;
}

/// An API call beside an application that keeps its transaction open takes less than this.
const AT_ONCE: Duration = Duration::from_millis(900);

fn names() -> Vec<String> {
    let mut names: Vec<String> =
        ["a", "A.b:c_d-9", "hooksaga", "hooksaga.x", "hooksaga.", "Hooksaga.x", "", " ", "a b", "a ", " a"]
            .map(str::to_owned)
            .to_vec();
    names.extend(
        ["ä", "a\n", "a\nb", "\t", "a/b", "a*", "~", "!", "\u{7f}", "a\u{a0}", "😀"].map(str::to_owned),
    );
    names.extend([100, 101, 200, 201].map(|length| "x".repeat(length)));
    names
}

/// Texts, and whether they are JSON. (A text with a lone surrogate counts as JSON; the receiver has to deal with it.)
pub fn payloads() -> Vec<(String, bool)> {
    let nested =
        |open: &str, close: &str, depth: usize| format!("{}1{}", open.repeat(depth), close.repeat(depth));
    let good = [
        "null",
        "true",
        "false",
        "0",
        "-0",
        "1",
        "-1.5e-10",
        "1E+5",
        "1e999",
        "\"\"",
        "\"a\"",
        " 1 ",
        "\t[\r\n1 ]",
        "[]",
        "{}",
        "[ ]",
        "{ }",
        "[1,2]",
        r#"{"a":1,"a":2}"#,
        r#"{"":[{"b":"]}\"["}]}"#,
        r#""\ud800""#,
        r#""\u0000""#,
        r#""\"\\\/\b\f\n\r\tä""#,
        "\"\u{7f}é😀\"",
        r#"["[[[", "S", "V"]"#,
        "{ \"a\" : [ ] , \"b\":{} }",
    ];
    let bad = [
        "",
        " ",
        "nul",
        "NULL",
        "True",
        "truex",
        "[truefalse]",
        "01",
        "-01",
        "-",
        "+1",
        ".5",
        "1.",
        "1e",
        "1e1.5",
        "0x10",
        "1_000",
        "--1",
        "1-2",
        "NaN",
        "Infinity",
        "-Infinity",
        "[1.]",
        "[-]",
        "[1e]",
        "[01]",
        "1 2",
        "[1 2]",
        "[1,]",
        "[,1]",
        "[,]",
        "{,}",
        r#"{"a":1,}"#,
        r#"{"a"}"#,
        r#"{"a":}"#,
        r#"{"a"::1}"#,
        "{a:1}",
        "{1:2}",
        "{'a':1}",
        r#"{"a":1 "b":2}"#,
        r#"{"a":1,,"b":2}"#,
        r#"["a" "b"]"#,
        "[1][2]",
        "[1]x",
        "[",
        "]",
        "[1}",
        r#"{"a":[1}"#,
        r#"[{"a":1]}"#,
        "\"",
        "\"a",
        "[\"]",
        r#""\""#,
        r#""\x""#,
        r#""\'""#,
        r#""\u12""#,
        r#""\u123g""#,
        r#"{"\q":1}"#,
        "\"a\tb\"",
        "\"a\nb\"",
        "\"\u{1}\"",
        "{\"\t\":1}",
        "/*c*/1",
        "1//c",
        "\u{feff}1",
        "\u{a0}1",
        "\u{b}1",
        "S",
        "V",
        "[S]",
        "[V]",
    ];
    let mut payloads: Vec<(String, bool)> = good.iter().map(|text| ((*text).to_owned(), true)).collect();
    payloads.extend(bad.iter().map(|text| ((*text).to_owned(), false)));
    for (open, close) in [("[", "]"), ("{\"a\":", "}"), ("[{\"b\":[", "]}]")] {
        let levels = 1 + open.matches(['[', '{']).count() - 1;
        payloads.push((nested(open, close, 126 / levels), true));
        payloads.push((nested(open, close, 129 / levels), false));
    }
    payloads.push((nested("[", "]", 128), true));
    payloads.push((format!("[{}1]", "[],".repeat(300)), true));
    payloads.push((format!("[{}", "[],".repeat(300)), false));
    payloads.push((format!("\"{}\"", "[".repeat(300)), true));
    payloads.push(("[".repeat(100_000), false));
    payloads.push((format!("{}{}", "[".repeat(200), "}".repeat(200)), false));
    payloads
}

/// Every field has to keep to the rules of the API, and is stored as it was given.
pub async fn validates_as_the_api_does(db: &dyn TestDatabase, app: &mut dyn Application) {
    let mut cases: Vec<(AppendCall, bool)> = Vec::new();
    for name in names() {
        let event_type = name.parse::<EventType>().is_ok_and(|name| !name.is_reserved());
        cases.push((AppendCall { event_type: Some(name.clone()), ..AppendCall::new("1") }, event_type));
        let tenant = name.parse::<Tenant>().is_ok_and(|name| !name.is_reserved());
        cases.push((AppendCall { tenant: Some(name.clone()), ..AppendCall::new("1") }, tenant));
        let external_id = name.parse::<ExternalId>().is_ok();
        cases.push((AppendCall { external_id: Some(name.clone()), ..AppendCall::new("1") }, external_id));
        let correlation_id = name.parse::<CorrelationId>().is_ok();
        cases.push((AppendCall { correlation_id: Some(name), ..AppendCall::new("1") }, correlation_id));
    }
    cases.extend(payloads().into_iter().map(|(text, good)| (AppendCall::new(&text), good)));
    cases.push((AppendCall { payload: None, ..AppendCall::new("1") }, false));
    cases.push((AppendCall { event_type: None, ..AppendCall::new("1") }, false));

    let mut stored = 0;
    for (call, good) in cases {
        let answer = app.append(&call).await;
        match answer {
            Ok(id) if good => {
                stored += 1;
                let event = db.stores().reader.event(&TenantScope::All, EventId(id)).await.unwrap().unwrap();
                assert_eq!(Some(event.payload.to_string()), call.payload, "byte for byte");
                assert_eq!(Some(event.head.event_type), call.event_type);
                assert_eq!(event.head.external_id, call.external_id);
                assert_eq!(event.head.tenant, call.tenant.unwrap_or_else(|| "default".to_owned()));
                let generated = event.head.correlation_id;
                match call.correlation_id {
                    Some(given) => assert_eq!(generated, given),
                    None => assert!(
                        generated.len() == 32
                            && generated.bytes().all(|byte| b"0123456789abcdef".contains(&byte)),
                        "{generated}"
                    ),
                }
                assert!(!event.routed);
            }
            Err(raised) if !good => {
                assert_eq!(raised.sqlstate, "OX422", "{call:?}: {raised:?}");
                assert!(raised.message.starts_with("hooksaga_append: "), "{raised:?}");
            }
            other => panic!("{call:?} should {}: {other:?}", if good { "go in" } else { "be refused" }),
        }
    }
    let limits = RouteLimits { events: 1000, sagas: 1000 };
    let routed = db.stores().router.route(limits, 5).await.unwrap();
    assert_eq!(routed.events.len(), stored, "each is queued once");
}

/// The limit is the one that servers have stored. Before that it is 1 MiB.
pub async fn keeps_to_the_servers_payload_limit(db: &dyn TestDatabase, app: &mut dyn Application) {
    let text = |bytes: usize| format!("\"{}\"", "x".repeat(bytes - 2));
    let ingest = db.stores().ingest;
    for limit in [1 << 20, 64, 100] {
        if limit != 1 << 20 {
            ingest.store_payload_limit(limit as u64).await.unwrap();
            ingest.store_payload_limit(limit as u64).await.unwrap();
        }
        app.append(&AppendCall::new(&text(limit))).await.unwrap();
        let raised = app.append(&AppendCall::new(&text(limit + 1))).await.unwrap_err();
        assert_eq!(raised.sqlstate, "OX413");
        assert!(raised.message.contains(&format!("at most {limit} are allowed")), "{raised:?}");
    }
    // Bytes, not characters.
    let raised = app.append(&AppendCall::new(&format!("\"{}\"", "ä".repeat(60)))).await.unwrap_err();
    assert_eq!(raised.sqlstate, "OX413");
}

/// The same event again returns the original, and different content is a conflict, also between the API and the outbox, in
/// either order.
pub async fn knows_duplicates_and_conflicts(db: &dyn TestDatabase, app: &mut dyn Application) {
    let stores = db.stores();
    let first = app.append(&AppendCall::once("{\"a\": 1}", "x")).await.unwrap();
    assert_eq!(app.append(&AppendCall::once("{\"a\": 1}", "x")).await, Ok(first));
    let of_api = NewEvent {
        tenant: Tenant::default(),
        event_type: "order.created".parse().unwrap(),
        payload: "{\"a\": 1}".into(),
        external_id: Some("x".parse().unwrap()),
        correlation_id: "c".parse().unwrap(),
    };
    let answers = stores.ingest.append(std::slice::from_ref(&of_api)).await.unwrap();
    assert!(matches!(&answers[0], Appended::Duplicate(head) if head.id.0 == first), "{answers:?}");
    let posted = NewEvent { external_id: Some("y".parse().unwrap()), ..of_api };
    let answers = stores.ingest.append(&[posted]).await.unwrap();
    let Appended::Created(head) = &answers[0] else { panic!("{answers:?}") };
    assert_eq!(app.append(&AppendCall::once("{\"a\": 1}", "y")).await, Ok(head.id.0));

    let mut others = ["{\"a\":1}", "{\"a\": 1} ", " {\"a\": 1}", "{\"A\": 1}"]
        .map(|text| AppendCall::once(text, "x"))
        .to_vec();
    others.push(AppendCall {
        event_type: Some("Order.created".to_owned()),
        ..AppendCall::once("{\"a\": 1}", "x")
    });
    for other in others {
        let raised = app.append(&other).await.unwrap_err();
        assert_eq!(raised.sqlstate, "OX409", "{other:?}");
        assert!(raised.message.contains(&format!("event {first} ")), "{raised:?}");
    }
    // The same id of another tenant, or in other case, is another id.
    let elsewhere = AppendCall { tenant: Some("t".to_owned()), ..AppendCall::once("2", "x") };
    assert_ne!(app.append(&elsewhere).await.unwrap(), first);
    assert_ne!(app.append(&AppendCall::once("2", "X")).await.unwrap(), first);
    let limits = RouteLimits { events: 100, sagas: 100 };
    assert_eq!(stores.router.route(limits, 5).await.unwrap().events.len(), 4);
}

/// After a rollback nothing has happened. After a commit the event exists with the rest of the transaction, and not before.
pub async fn goes_with_the_transaction(db: &dyn TestDatabase, app: &mut dyn Application) {
    let router = db.stores().router;
    let limits = RouteLimits { events: 100, sagas: 100 };
    let queued = async || router.route(limits, 5).await.unwrap().events.len();
    for end in ["ROLLBACK", "COMMIT"] {
        app.execute("BEGIN").await.unwrap();
        let id = app.append(&AppendCall::once("1", "a")).await.unwrap();
        assert_eq!(app.append(&AppendCall::once("1", "a")).await, Ok(id), "its own event is a duplicate");
        app.append(&AppendCall::new("2")).await.unwrap();
        assert_eq!(queued().await, 0, "nobody sees it before the commit");
        app.execute(end).await.unwrap();
        assert_eq!(queued().await, if end == "COMMIT" { 2 } else { 0 });
    }
}

/// An event whose transaction began before a subscription was created, and committed before it was verified.
pub async fn a_late_commit_is_caught_up_with(db: &dyn TestDatabase, app: &mut dyn Application) {
    let stores = db.stores();
    app.execute("BEGIN").await.unwrap();
    let late = app.append(&AppendCall::new("1")).await.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    let id = create(&stores, &new_subscription("order.created", "https://late.example/")).await.id;
    app.execute("COMMIT").await.unwrap();
    let limits = RouteLimits { events: 1000, sagas: 1000 };
    let routed = stores.router.route(limits, 5).await.unwrap().events;
    assert_eq!((routed.len(), routed[0].unmatched.unverified), (1, 1));
    verify(&stores, id).await;
    let (step, day) =
        (StepLimits { examine: 100, create: 100, default_limit: 5 }, Duration::from_secs(24 * 3600));
    while stores.redrives.catch_up(step, Some(day)).await.unwrap().is_some() {}
    let filter = DeliveryFilter { subscription_id: Some(id), ..DeliveryFilter::default() };
    let page = PageRequest { limit: 10, before: None };
    let found = stores.reader.deliveries(page.of(&TenantScope::All, &filter)).await.unwrap().items;
    assert_eq!(found.iter().map(|delivery| delivery.event_id).collect::<Vec<_>>(), [EventId(late)]);
}

/// An event that commits after later ones were indexed still appears in lists that are read by the index.
pub async fn a_late_commit_is_listed(db: &dyn TestDatabase, app: &mut dyn Application) {
    let stores = db.stores();
    let event = |n: usize| NewEvent {
        tenant: Tenant::default(),
        event_type: "order.created".parse().unwrap(),
        payload: n.to_string().into(),
        external_id: None,
        correlation_id: "c".parse().unwrap(),
    };
    let before: Vec<NewEvent> = (0..300).map(event).collect();
    stores.ingest.append(&before).await.unwrap();
    app.execute("BEGIN").await.unwrap();
    let late = app
        .append(&AppendCall { event_type: Some("late".to_owned()), ..AppendCall::new("1") })
        .await
        .unwrap();
    stores.ingest.append(&before).await.unwrap();

    let index = async || {
        for _ in 0..20 {
            stores.list_index.index(IndexedList::Events, 1000, Duration::ZERO).await.unwrap();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let listed = async || {
        let filter = EventFilter { event_type: asked("late"), ..EventFilter::default() };
        let page = PageRequest { limit: 10, before: None };
        let found = stores.reader.events(page.of(&TenantScope::All, &filter)).await.unwrap().items;
        found.iter().map(|event| event.id).collect::<Vec<_>>()
    };
    let below = async || count(db, "list_progress WHERE list = 2 AND below > 0").await;
    index().await;
    assert_eq!(listed().await, []);
    app.execute("COMMIT").await.unwrap();
    assert_eq!(listed().await, [EventId(late)], "with what was indexed while it was open");
    for _ in 0..100 {
        index().await;
        if below().await > 0 {
            break;
        }
    }
    assert_eq!(below().await, 1, "it goes on after the commit");
    assert_eq!(listed().await, [EventId(late)]);
}

/// An application that keeps its transaction open, with an event in it, delays only posts of the same external id. Its event is
/// routed when it commits, although later ids were routed before. `isolation`: that of the session, for messages;
/// `with_duplicate`: the transaction has also appended an existing external id.
pub async fn an_open_transaction_delays_nobody_else(
    db: &dyn TestDatabase,
    app: &mut dyn Application,
    isolation: &str,
    with_duplicate: bool,
) {
    let stores = db.stores();
    let limits = RouteLimits { events: 1000, sagas: 1000 };
    let event = |external_id: Option<String>| NewEvent {
        tenant: Tenant::default(),
        event_type: "t".parse().unwrap(),
        payload: "1".into(),
        external_id: external_id.map(|id| id.parse().unwrap()),
        correlation_id: "c".parse().unwrap(),
    };
    let neighbours = ["a", "z", "mm", "old"].map(|id| event(Some(id.to_owned())));
    stores.ingest.append(&neighbours).await.unwrap();
    app.execute("BEGIN").await.unwrap();
    let held = app.append(&AppendCall::once("1", "m")).await.unwrap();
    app.append(&AppendCall::new("2")).await.unwrap();
    if with_duplicate {
        app.append(&AppendCall { event_type: Some("t".to_owned()), ..AppendCall::once("1", "old") })
            .await
            .unwrap();
    }
    assert_eq!(stores.router.route(limits, 5).await.unwrap().events.len(), 4);

    // On either side of what it holds, in the gaps before it, and without an external id.
    let began = Instant::now();
    for n in 0..10 {
        for id in ["b", "l", "lz", "m0", "n", "oa", "ol", "old0", "zz"] {
            let one = Instant::now();
            let answers =
                stores.ingest.append(&[event(Some(format!("{id}-{n}"))), event(None)]).await.unwrap();
            assert!(answers.iter().all(|answer| matches!(answer, Appended::Created(_))), "{answers:?}");
            assert!(one.elapsed() < AT_ONCE, "{id}-{n} waited {:?} ({isolation})", one.elapsed());
        }
        assert_eq!(stores.router.route(limits, 5).await.unwrap().events.len(), 18);
    }
    assert!(began.elapsed() < Duration::from_secs(20));
    app.execute("COMMIT").await.unwrap();
    let late = stores.router.route(limits, 5).await.unwrap().events;
    assert_eq!(late.len(), 2, "the two that it appended");
    assert!(late.iter().any(|routed| routed.event_id.0 == held), "{late:?}");
}
