//! What the script keeps up to date: times that count down, and the part of a page that changes, while somebody looks.

use super::*;

/// A server with a delivery that waits long for its next attempt, which its endpoint refused once; that delivery's id.
async fn with_a_long_wait() -> (Installation, Server, Receiver, i64) {
    let installation = Installation::sqlite()
        .with("HOOKSAGA_RETRY_BASE_DELAY", "90s")
        .with("HOOKSAGA_RETRY_MAX_DELAY", "90s");
    let (server, receiver) = (installation.serve().await, Receiver::start().await);
    let api = server.api();
    receiver.answer("/in", [Behaviour::Status(500)]);
    let body = json!({"event_type": "order.created", "callback_url": receiver.url("/in")});
    let id = api.post("/v1/subscriptions", &body).await.expect(201)["id"].as_i64().unwrap();
    eventually("verified", || async { (api.subscription(id).await["verified"] == true).then_some(()) }).await;
    let event = api.event("order.created", &json!({"order": 1})).await;
    let delivery = api.delivery_with_status(event, "PendingRetry").await["saga_id"].as_i64().unwrap();
    (installation, server, receiver, delivery)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_attempt_is_counted_down_without_asking_the_server() {
    let (_installation, server, _receiver, delivery) = with_a_long_wait().await;
    let page = signed_in(&server).await;
    for path in [format!("/deliveries/{delivery}"), "/".to_owned()] {
        page.open(&path).await;
        page.until("/^in \\d+ s$/.test(document.querySelector('time[data-due]').innerText)").await;
        // No refresh: what changes now is counted.
        page.eval("fetch = () => new Promise(() => {}); first = document.querySelector('time[data-due]').innerText; 0")
            .await;
        page.until(
            "(() => {
               const seconds = (text) => Number(text.match(/^in (\\d+) s$/)?.[1]);
               return seconds(document.querySelector('time[data-due]').innerText) <= seconds(first) - 2;
             })()",
        )
        .await;
    }
    assert_calm(&page);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_is_refreshed_only_while_somebody_looks_at_it() {
    let (_installation, server, _receiver, delivery) = with_a_long_wait().await;
    let page = signed_in(&server).await;
    for path in ["/".to_owned(), format!("/deliveries/{delivery}")] {
        page.open(&path).await;
        page.eval(
            "asked = 0; real = fetch; fetch = (...how) => { asked += 1; return real(...how); };
             hidden = true; Object.defineProperty(document, 'hidden', {get: () => hidden}); 0",
        )
        .await;
        // A refresh that was under way when it was hidden is no longer counted: there is none in the first two seconds.
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(page.eval("asked").await, 0, "{path} was refreshed though nobody looked");
        page.eval("hidden = false; 0").await;
        page.until("asked >= 2").await;
    }
    assert_calm(&page);
}

/// A page may be refreshed while somebody fills in its form.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_filled_in_stays_when_the_page_is_refreshed() {
    let server = Installation::sqlite().serve().await;
    let page = signed_in(&server).await;
    page.open("/redrives").await;
    // As it is while a redrive runs.
    page.eval("part = document.getElementById('part'); part.dataset.live = ''; 0").await;
    page.fill("input[name=subscription_id]", "17").await;
    page.eval("document.querySelector('input[name=since]').value = '2020-01-01T12:34:56'").await;
    assert_eq!(page.eval("document.activeElement.blur(); document.contains(part)").await, true);
    page.until("!document.contains(part)").await;
    let filled = page.eval("['subscription_id', 'since'].map((name) => document.querySelector(`#part input[name=${name}]`).value).join()").await;
    assert_eq!(filled, "17,2020-01-01T12:34:56");
    assert_calm(&page);
}

/// A refresh that brings a new control, or takes one away, leaves the focus where it was, or nowhere: Enter does nothing else
/// than what was meant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_focus_never_moves_to_another_control() {
    let (_installation, server, _receiver, delivery) = with_a_long_wait().await;
    let page = signed_in(&server).await;
    page.open(&format!("/deliveries/{delivery}")).await;
    // The next part has a form and a link more, before what is focused; later one lacks that.
    page.eval(
        "real = fetch; change = (text) => text;
         fetch = async (...how) => new Response(change(await (await real(...how)).text()));
         link = document.querySelector('#part a[href^=\"/subscriptions/\"]'); link.focus(); link.href",
    )
    .await;
    let changed = async |change: &str| {
        page.eval(&format!("part = document.getElementById('part'); change = {change}; 0")).await;
        page.until("!document.contains(part)").await;
        page.eval("document.activeElement.getAttribute('href') || document.activeElement.tagName").await
    };
    let more = "(text) => text.replace(/(<div id=\"part\"[^>]*>)/, '$1<form method=\"post\" action=\"/x\"><button>Send again</button></form><a href=\"/y\">new</a>')";
    let focused = changed(more).await;
    assert!(focused.as_str().unwrap().starts_with("/subscriptions/"), "{focused}");
    assert!(page.has("#part form button").await, "the change has come");
    let less = "(text) => text.replaceAll('href=\"/subscriptions/', 'href=\"/elsewhere/')";
    assert_eq!(changed(less).await, "BODY");
    assert_calm(&page);
}
