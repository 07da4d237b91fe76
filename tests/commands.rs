//! The command line against a running server, as people and scripts use it.

use crate::support::*;
use hooksaga_testkit::https::certify;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use std::process::Output;

/// An embedded server, and the environment of a person who talks to it.
pub(crate) async fn installed() -> (Installation, Server) {
    let installation = Installation::sqlite();
    let server = installation.serve().await;
    (at(&server), server)
}

/// A person elsewhere who knows where the server is.
pub(crate) fn at(server: &Server) -> Installation {
    Installation::sqlite().with("HOOKSAGA_URL", &server.url()).with("HOOKSAGA_API_KEY", ROOT_KEY)
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Runs a command that has to succeed; what it printed.
pub(crate) async fn ok(person: &Installation, arguments: &[&str]) -> String {
    let output = run(person, arguments).await;
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}{}", stdout(&output), stderr(&output));
    assert!(!stdout(&output).contains('\x1b'), "no colours but on a terminal: {}", stdout(&output));
    stdout(&output)
}

/// Runs a command that has to fail; why it did.
pub(crate) async fn fails(person: &Installation, arguments: &[&str]) -> String {
    let output = run(person, arguments).await;
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}{}", stdout(&output), stderr(&output));
    let last = stderr(&output).lines().last().unwrap_or_default().to_owned();
    assert!(last.starts_with("hooksaga: "), "{last}");
    last
}

pub(crate) async fn json(person: &Installation, arguments: &[&str]) -> Value {
    let printed = ok(person, &[arguments, &["--json"]].concat()).await;
    serde_json::from_str(&printed).unwrap_or_else(|_| panic!("{arguments:?} printed {printed}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_is_added_listed_changed_and_paused() {
    let (person, server) = installed().await;
    let receiver = Receiver::start().await;
    let url = receiver.url("/hook");
    let added = ok(
        &person,
        &[
            "subscriptions",
            "add",
            "order.*,invoice.paid",
            &url,
            "--tenant",
            "acme",
            "--description",
            "the shop",
            "--max-retry-limit",
            "7",
            "--wait",
        ],
    )
    .await;
    assert!(
        added.contains("secret whsec_") && added.contains(&format!("verified: {url} gets deliveries")),
        "{added}"
    );

    let listed = ok(&person, &["subscriptions", "list", "--tenant", "acme", "--verified", "true"]).await;
    let columns: Vec<&str> = listed.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(columns[..5], ["1", "acme", "invoice.paid,order.*", &url, "active"], "{listed}");
    assert!(
        ok(&person, &["subscriptions", "list", "--active", "false"])
            .await
            .starts_with("no such subscriptions")
    );

    let exists =
        fails(&person, &["subscriptions", "add", "invoice.paid,order.*", &url, "--tenant", "acme"]).await;
    assert!(exists.contains("`hooksaga subscriptions show 1`"), "{exists}");

    assert!(ok(&person, &["subscriptions", "pause", "1"]).await.contains("paused"));
    let shown = ok(&person, &["subscriptions", "show", "1"]).await;
    for part in ["the shop", "paused", "attempts at most     7", "`hooksaga subscriptions resume 1`"] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    assert!(ok(&person, &["subscriptions", "resume", "1"]).await.contains("active"));
    let other = receiver.url("/other");
    let updated = ok(
        &person,
        &["subscriptions", "update", "1", "--callback-url", &other, "--no-description", "--wait"],
    )
    .await;
    assert!(updated.contains(&format!("verified: {other}")), "{updated}");
    let now = json(&person, &["subscriptions", "show", "1"]).await;
    assert_eq!(now, server.api().subscription(1).await, "--json is what the API returns");
    assert_eq!((&now["description"], &now["callback_url"]), (&Value::Null, &json!(other)));
    assert!(ok(&person, &["subscriptions", "verify", "1", "--wait"]).await.contains("verified"));
    assert!(ok(&person, &["subscriptions", "rotate-secret", "1"]).await.starts_with("whsec_"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_keeps_its_secret_and_gets_nothing_until_it_is_resumed() {
    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let (person, server) = installed().await;
    let receiver = Receiver::start().await;
    std::fs::write(person.folder.path().join("acme.secret"), format!("{SECRET}\n")).unwrap();
    let url = receiver.url("/hook");
    let options = ["--secret", "@acme.secret", "--paused", "--wait"];
    let added = ok(&person, &[&["subscriptions", "add", "t", &url][..], &options].concat()).await;
    assert!(added.contains("verified, but paused") && !added.contains("whsec_"), "{added}");
    let event = server.api().event("t", &json!(1)).await;
    let nobody = fails(&person, &["send", "t", "{}", "--watch"]).await;
    assert!(nobody.contains("is paused"), "{nobody} after {event}");
    ok(&person, &["subscriptions", "resume", "1"]).await;
    ok(&person, &["send", "t", "{}", "--watch"]).await;
    let arrived = receiver.deliveries("/hook");
    assert!(arrived.len() == 1 && signed_by(&arrived[0], SECRET), "{arrived:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_that_does_not_prove_itself_is_told_what_to_return() {
    let (person, _server) = installed().await;
    let receiver = Receiver::start().await;
    receiver.answer_challenge("/hook", std::iter::repeat_n(Behaviour::Status(404), 3));
    let begun = std::time::Instant::now();
    let url = receiver.url("/hook");
    let output = run(&person, &["subscriptions", "add", "t", &url, "--wait"]).await;
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(begun.elapsed() > Duration::from_secs(30), "it waited for the last challenge: {said}");
    for part in [
        "not yet: HTTP_404",
        "subscription 1 is not verified",
        "{\"challenge\":\"…\"}",
        "subscriptions verify 1 --wait",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
    let shown = ok(&person, &["subscriptions", "list"]).await;
    assert!(shown.contains("unverified: HTTP_404"), "{shown}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sent_event_is_watched_until_its_endpoints_have_it() {
    let (person, server) = installed().await;
    let receiver = Receiver::start().await;
    let nobody = fails(&person, &["send", "order.created", "{\"n\": 1}", "--watch"]).await;
    assert!(
        nobody.contains("nobody takes event 1")
            && nobody.contains("`hooksaga subscriptions add order.created URL")
    );

    let (id, _) = server.api().verified_subscription("order.*", &receiver.url("/hook")).await;
    receiver.answer("/hook", [Behaviour::Status(503), Behaviour::Status(200)]);
    let watched = ok(&person, &["send", "order.created", "{\"n\": 2}", "--watch"]).await;
    let lines: Vec<&str> = watched.lines().collect();
    assert!(lines[0].starts_with("event ") && lines[0].contains(" accepted"), "{watched}");
    assert!(watched.contains("attempt 1 of 3: HTTP_503: "), "{watched}");
    assert!(watched.contains(&format!("-> {} ({id})", receiver.url("/hook"))), "{watched}");
    assert_eq!(lines.last(), Some(&"delivered to 1 endpoint"));

    // Another tenant's subscriptions do not take it.
    let nobody = fails(&person, &["send", "order.created", "--tenant", "acme", "--watch"]).await;
    assert!(nobody.contains("--tenant acme --wait"), "{nobody}");
    ok(&person, &["subscriptions", "pause", "1"]).await;
    let paused = fails(&person, &["send", "order.created", "--watch"]).await;
    assert!(paused.contains("`hooksaga subscriptions resume 1`"), "{paused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_delivery_can_be_followed_to_its_requeue() {
    let (person, server) = installed().await;
    let receiver = Receiver::start().await;
    server.api().verified_subscription("t", &receiver.url("/hook")).await;
    receiver
        .answer("/hook", std::iter::repeat_n(Behaviour::Body(500, "out of \u{1b}[31mstock".to_owned()), 3));
    let given_up =
        fails(&person, &["send", "t", "{\"big\": 1e999}", "--external-id", "order-1", "--watch"]).await;
    assert!(
        given_up.contains("1 of 1 endpoint did not take it: see `hooksaga deliveries show 1`"),
        "{given_up}"
    );

    let shown = ok(&person, &["deliveries", "show", "1"]).await;
    for part in [
        "DeadLettered",
        "3 of 3",
        "All 3 attempts failed",
        "What to do: ",
        "HTTP_500",
        "out of \u{fffd}[31mstock",
    ] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    assert_eq!(shown.lines().filter(|line| line.contains("Failed")).count(), 3, "{shown}");
    let listed = ok(
        &person,
        &["deliveries", "list", "--status", "deadlettered,Completed", "--external-id", "order-1"],
    )
    .await;
    assert!(listed.lines().nth(1).unwrap().starts_with("1 "), "{listed}");
    assert_eq!(ok(&person, &["deliveries", "list", "--status", "Completed"]).await, "no such deliveries\n");
    let sent = server.api().get("/v1/events?event_type=t").await.expect(200);
    let event = ok(&person, &["events", "show", &format!("evt_{}", sent["items"][0]["id"])]).await;
    assert!(event.contains("{\"big\": 1e999}") && event.contains("DeadLettered"), "{event}");
    assert!(ok(&person, &["events", "list", "--type", "t", "--since", "1h"]).await.contains("order-1"));
    assert_eq!(ok(&person, &["events", "list", "--until", "1h"]).await.lines().count(), 1);

    eventually("the dead letter is there", || async {
        ok(&person, &["dead-letters", "list", "--requeued", "false"]).await.contains("HTTP_500").then_some(())
    })
    .await;
    assert!(ok(&person, &["dead-letters", "show", "1"]).await.contains("`hooksaga dead-letters requeue 1`"));
    let dry = ok(&person, &["dead-letters", "requeue", "--error", "HTTP_500", "--dry-run"]).await;
    assert_eq!(dry, "1 of 1 dead letter would be requeued\n");
    let none = ok(&person, &["dead-letters", "requeue", "--error", "TIMEOUT"]).await;
    assert_eq!(none, "0 of 0 dead letters requeued\n");
    receiver.answer("/hook", [Behaviour::Status(200)]);
    let requeued = ok(&person, &["dead-letters", "requeue", "1"]).await;
    assert!(requeued.starts_with("dead letter 1 is requeued as delivery 2"), "{requeued}");
    assert!(ok(&person, &["dead-letters", "requeue", "1"]).await.contains("requeued before, as delivery 2"));
    server.api().saga_with_status(2, "Completed").await;
    assert!(ok(&person, &["dead-letters", "list"]).await.contains("delivery 2"));
    let resent = ok(&person, &["deliveries", "resend", "2"]).await;
    assert!(resent.starts_with("delivery 2 is sent again as delivery 3"), "{resent}");
    assert!(ok(&person, &["deliveries", "resend", "2"]).await.contains("before, as delivery 3"));
    server.api().saga_with_status(3, "Completed").await;
    assert_eq!(receiver.deliveries("/hook").len(), 5);
    let stats = ok(&person, &["stats"]).await;
    assert!(stats.contains("Open deliveries") && stats.contains("unrouted_events"), "{stats}");
    assert_eq!(
        run(&person, &["dead-letters", "requeue"]).await.status.code(),
        Some(2),
        "not everything by accident"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_are_paged_for_people_and_scripts() {
    let (person, server) = installed().await;
    for (kind, none) in [("events", "no events yet: "), ("deliveries", "no deliveries yet\n")] {
        assert!(ok(&person, &[kind, "list"]).await.starts_with(none), "{kind}");
        let filtered = ok(&person, &[kind, "list", "--type", "t"]).await;
        assert_eq!(filtered, format!("no such {kind}\n"));
    }
    for number in 0..7 {
        server.api().event("t", &json!(number)).await;
    }
    let first = run(&person, &["events", "list", "--limit", "3"]).await;
    assert_eq!(stdout(&first).lines().count(), 4);
    let said = stderr(&first);
    let cursor = said.split("--cursor ").nth(1).unwrap().split(',').next().unwrap();
    let rest = ok(&person, &["events", "list", "--cursor", cursor]).await;
    let ids: Vec<_> = rest.lines().skip(1).map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(ids, ["4", "3", "2", "1"]);
    let page = json(&person, &["events", "list", "--limit", "3"]).await;
    assert_eq!(page, server.api().get("/v1/events?limit=3").await.json());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tail_shows_what_happens_and_ends_at_a_signal() {
    let (person, server) = installed().await;
    let receiver = Receiver::start().await;
    let api = server.api();
    let (id, _) = api.verified_subscription("t", &receiver.url("/hook")).await;
    let before = api.event("t", &json!("before")).await;
    api.delivery_with_status(before, "Completed").await;

    let everything = Process::start(&person, &["tail"]).await;
    let failures = Process::start(&person, &["tail", "--failures", "--subscription", &id.to_string()]).await;
    let scripted = Process::start(&person, &["tail", "--json"]).await;
    for process in [&everything, &failures, &scripted] {
        process.said("following deliveries").await;
    }
    receiver.answer("/hook", [Behaviour::Status(200), Behaviour::Status(503), Behaviour::Status(200)]);
    let good = api.event("t", &json!(1)).await;
    api.delivery_with_status(good, "Completed").await;
    let shaky = api.event("t", &json!(2)).await;
    api.delivery_with_status(shaky, "Completed").await;

    everything.said(&format!("delivered  evt_{good} ")).await;
    everything.said(&format!("delivered  evt_{shaky} ")).await;
    everything.said(&receiver.url("/hook")).await;
    let (code, lines) = everything.interrupt().await;
    assert_eq!(code, Some(0));
    assert!(!lines.iter().any(|line| line.contains(&format!("evt_{before} "))), "{lines:?}");
    assert_eq!(
        lines.iter().filter(|line| line.contains(&format!("delivered  evt_{good} "))).count(),
        1,
        "once: {lines:?}"
    );
    scripted.said(&format!("\"event_id\":{shaky},")).await;
    let (_, lines) = scripted.interrupt().await;
    let shown: Vec<Value> = lines.iter().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let good =
        shown.iter().find(|shown| shown["event_id"] == good && shown["status"] == "Completed").unwrap();
    let listed = api.get(&format!("/v1/deliveries?event_id={}", good["event_id"])).await.expect(200);
    assert_eq!(*good, listed["items"][0], "as a list has it");
    let (_, lines) = failures.interrupt().await;
    assert!(!lines.iter().any(|line| line.contains("delivered")), "{lines:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tail_follows_what_was_open_before_and_waits_for_a_server_that_is_away() {
    let installation =
        Installation::sqlite().with("HOOKSAGA_RETRY_BASE_DELAY", "7s").with("HOOKSAGA_RETRY_MAX_DELAY", "7s");
    let server = installation.serve().await;
    let person = at(&server);
    let receiver = Receiver::start().await;
    let api = server.api();
    api.verified_subscription("t", &receiver.url("/hook")).await;
    receiver.answer("/hook", [Behaviour::Status(503), Behaviour::Status(200)]);
    let event = api.event("t", &json!(1)).await;
    api.delivery_with_status(event, "PendingRetry").await;
    let tail = Process::start(&person, &["tail"]).await;
    tail.said("following deliveries").await;
    // Longer ago than a look at the newest reaches: it is asked for by its id.
    tail.said(&format!("delivered  evt_{event} ")).await;
    assert_eq!(server.terminate().await, Some(0));
    tail.said("waiting for the server: cannot reach").await;
    assert_eq!(tail.interrupt().await.0, Some(0));

    let gone = fails(&person, &["tail"]).await;
    assert!(gone.contains("cannot reach") && gone.contains("hooksaga serve"), "{gone}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tail_follows_a_backlog_and_says_what_it_leaves_out() {
    let (person, server) = installed().await;
    let receiver = Receiver::start().await;
    let api = server.api();
    let (id, _) = api.verified_subscription("t", &receiver.url("/hook")).await;
    api.patch(&format!("/v1/subscriptions/{id}"), &json!({"rate_limit": 30})).await.expect(200);
    let mut ids = Vec::new();
    for _ in 0..3 {
        let events = vec![json!({"event_type": "t", "payload": 1}); 734];
        let answer = api.post("/v1/events/batch", &json!({ "events": events })).await.expect(200);
        ids.extend(answer["results"].as_array().unwrap().iter().map(|one| one["id"].as_i64().unwrap()));
    }
    eventually("the backlog is there", || async {
        let gauges = api.get("/v1/stats").await.json();
        (gauges["queue_depths"]["unrouted_events"] == 0).then_some(())
    })
    .await;
    let tail = Process::start(&person, &["tail"]).await;
    tail.said("more than 2000 deliveries are open").await;
    // Far from the newest, and among the first that are sent: those are found one by one.
    tail.said(&format!("delivered  evt_{} ", ids[300])).await;
    let (code, lines) = tail.interrupt().await;
    assert_eq!(code, Some(0));
    assert_eq!(lines.iter().filter(|line| line.contains("are open")).count(), 1, "said once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_has_gone_is_no_failure_and_a_full_disk_is_one() {
    let (person, _server) = installed().await;
    let commands = "\
hooksaga stats | head -n 1
hooksaga tail | true
if hooksaga stats >/dev/full; then exit 9; fi
if hooksaga send t >/dev/full; then exit 9; fi
";
    let printed = run_script(&person, &[], commands).await;
    let failures: Vec<&str> =
        printed.lines().filter(|line| line.contains("stdout cannot be written")).collect();
    assert!(failures.len() == 2 && failures[0].contains("No space left"), "{printed}");
    assert!(printed.starts_with("Open deliveries\n"), "{printed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listen_forwards_to_a_program_and_gives_its_response_back() {
    let (person, server) = installed().await;
    let program = Receiver::start().await;
    program.answer("/hook", [Behaviour::Status(500), Behaviour::Status(201)]);
    let listen =
        Process::start(&person, &["listen", "--port", "0", "--forward", &program.url("/hook")]).await;
    let said = listen.said("listening on ").await;
    let address = said.split("listening on ").nth(1).unwrap().trim().to_owned();
    server.api().verified_subscription("t", &address).await;
    let watched = ok(&person, &["send", "t", "{\"a\": 1}", "--watch"]).await;
    assert!(watched.contains("HTTP_500") && watched.contains("delivered to 1 endpoint"), "{watched}");
    assert!(program.challenges("/hook").is_empty(), "challenges are answered by the listener");
    let arrived = program.deliveries("/hook");
    assert_eq!(arrived.len(), 2);
    assert_eq!(&arrived[0].body[..], b"{\"a\": 1}");
    assert!(arrived[0].header("webhook-id").unwrap().starts_with("evt_"));
    listen.said(&format!("-> 201 from {}", program.url("/hook"))).await;
    assert_eq!(listen.interrupt().await.0, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_reach_a_server_over_tls_and_say_why_they_do_not() {
    let installation =
        Installation::sqlite().with("HOOKSAGA_TLS_CERT", "cert.pem").with("HOOKSAGA_TLS_KEY", "key.pem");
    certify(installation.folder.path());
    let server = installation.serve().await;
    let port = server.address().rsplit(':').next().unwrap();
    let person = at(&server).with("HOOKSAGA_URL", &format!("https://localhost:{port}"));
    let untrusted = fails(&person, &["stats"]).await;
    assert!(untrusted.contains("TLS failed") && untrusted.contains("SSL_CERT_FILE"), "{untrusted}");
    let plain =
        fails(&at(&server).with("HOOKSAGA_URL", &format!("http://localhost:{port}")), &["stats"]).await;
    assert!(plain.contains("no HTTP") && plain.contains("https://"), "{plain}");
    let file = installation.folder.path().join("cert.pem");
    let person = person.with("SSL_CERT_FILE", file.to_str().unwrap());
    assert!(ok(&person, &["stats"]).await.contains("Open deliveries"));
    assert_eq!(server.terminate().await, Some(0));

    // What `openssl req -x509` makes is the certificate of an authority.
    let mut authority = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    std::fs::write(&file, authority.self_signed(&key).unwrap().pem()).unwrap();
    std::fs::write(installation.folder.path().join("key.pem"), key.serialize_pem()).unwrap();
    let server = installation.serve().await;
    let port = server.address().rsplit(':').next().unwrap();
    let person = person.with("HOOKSAGA_URL", &format!("https://localhost:{port}"));
    let refused = fails(&person, &["stats"]).await;
    assert!(refused.contains("CA:FALSE"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_say_what_to_do() {
    let no_server_yet = fails(&Installation::sqlite(), &["stats"]).await;
    assert!(
        no_server_yet.contains("HOOKSAGA_API_KEY") && no_server_yet.contains("`hooksaga serve`"),
        "{no_server_yet}"
    );
    let (person, _server) = installed().await;
    let no_key = fails(&person.with("HOOKSAGA_API_KEY", "hsk_wrong"), &["stats"]).await;
    assert!(no_key.contains("401") && no_key.contains("hooksaga keys create"), "{no_key}");
    let (person, _server) = installed().await;
    let missing = fails(&person, &["deliveries", "show", "99"]).await;
    assert!(missing.contains("404") && missing.contains("99"), "{missing}");
    assert_eq!(run(&person, &["deliveries", "show", "x"]).await.status.code(), Some(2));
    let plain = fails(&person, &["subscriptions", "add", "t", "ftp://x"]).await;
    assert!(plain.contains("callback_url"), "{plain}");
    // A payload where the type belongs: said once, before the file is opened, not for each of its lines.
    let swapped = run(&person, &["send", "--file", "events.ndjson", "{}"]).await;
    assert_eq!(swapped.status.code(), Some(2));
    assert!(stderr(&swapped).contains("an event type must be 1 to 100 characters"), "{}", stderr(&swapped));
    for id in ["x", "0"] {
        let revoked = run(&person, &["keys", "revoke", id]).await;
        assert_eq!(revoked.status.code(), Some(2));
        assert!(stderr(&revoked).contains("a positive number"), "{}", stderr(&revoked));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn completions_are_scripts_that_shells_can_read() {
    let nobody = Installation::sqlite();
    for (shell, beginning) in
        [("bash", "_hooksaga()"), ("zsh", "#compdef hooksaga"), ("fish", "# Print an optspec")]
    {
        let script = ok(&nobody, &["completions", shell]).await;
        assert!(script.starts_with(beginning), "{shell}: {}", &script[..100]);
        for word in ["dead-letters", "rotate-secret", "--max-retry-limit"] {
            let word = if shell == "fish" { word.trim_start_matches("--") } else { word };
            assert!(script.contains(word), "{word} for {shell}");
        }
        let file = nobody.folder.path().join(shell);
        std::fs::write(&file, &script).unwrap();
        // -n reads without running. A shell that is not installed cannot be asked; bash always is.
        match tokio::process::Command::new(shell).arg("-n").arg(&file).output().await {
            Ok(output) => assert!(output.status.success(), "{shell}: {}", stderr(&output)),
            Err(error) => assert!(shell != "bash", "{error}"),
        }
    }
    assert_eq!(run(&nobody, &["completions", "cmd"]).await.status.code(), Some(2));
}
