//! The portal from another site: a link there, and a frame there.

use super::*;
use hooksaga_testkit::server::Server;

/// The page of another site: `/a?URL` has a link, `/iframe?URL` a frame.
const ELSEWHERE: &str = "<!doctype html><title>Elsewhere</title><body><script>
const one = document.createElement(location.pathname.slice(1));
one.append('To the webhooks');
one.style = 'display: block; width: 1000px; height: 600px';
one[one.matches('a') ? 'href' : 'src'] = decodeURIComponent(location.search.slice(1));
document.body.append(one);
</script>";

/// Serves that page.
async fn elsewhere() -> Server {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length";
    Server::always(format!("{head}: {}\r\n\r\n{ELSEWHERE}", ELSEWHERE.len())).await
}

/// The origin of that page, under a name that is another site than hooksaga's.
fn origin(site: &Server) -> String {
    format!("http://localhost:{}", site.address.port())
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

/// Nothing went wrong, but that another site was asked.
fn assert_calm_elsewhere(page: &Page) {
    let complaints: Vec<_> =
        page.complaints().into_iter().filter(|it| !it.starts_with("a request to")).collect();
    assert!(complaints.is_empty(), "{complaints:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_on_another_site_opens_the_portal() {
    let installation = Installation::sqlite();
    let server = installation.serve().await;
    let session = server.api().post("/v1/portal-sessions", &json!({"tenant": "acme"})).await.expect(201);
    let site = elsewhere().await;
    let page = Page::of(&origin(&site)).await;
    page.open(&format!("/a?{}", encoded(session["url"].as_str().unwrap()))).await;
    page.follow("a").await;
    page.until("location.pathname === '/portal' && document.querySelector('.who') !== null").await;
    assert_eq!(page.eval("location.hash").await, "", "the token is not left in the address");
    page.see("acme").await;

    // Who is signed in gets to a page without a token, although the strict cookie is not sent with the link.
    page.open(&format!("/a?{}", encoded(&format!("{}/portal/events", server.url())))).await;
    page.follow("a").await;
    page.until("location.pathname === '/portal/events' && document.querySelector('.who') !== null").await;
    assert_calm_elsewhere(&page);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_on_another_site_leads_on_without_the_script() {
    let server = Installation::sqlite().serve().await;
    let site = elsewhere().await;
    let page = Page::of(&origin(&site)).await;
    page.open(&format!("/a?{}", encoded(&format!("{}/portal/events", server.url())))).await;
    page.without_scripts().await;
    page.follow("a").await;
    page.see("Open your webhooks").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_site_that_may_embeds_the_portal() {
    let site = elsewhere().await;
    let elsewhere = origin(&site);
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let installation = Installation::sqlite()
        .with("HOOKSAGA_TLS_CERT", "cert.pem")
        .with("HOOKSAGA_TLS_KEY", "key.pem")
        .with("HOOKSAGA_PORTAL_FRAME_ANCESTORS", &elsewhere);
    std::fs::write(installation.folder.path().join("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(installation.folder.path().join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let server = installation.serve().await;
    let (token, _) = new_key(&installation, "read,admin,operator", &["--tenant", "acme"]).await;
    let (rivals, _) = new_key(&installation, "read,admin,operator", &["--tenant", "rival"]).await;
    let portal = format!("https://{}/portal", server.address());

    let page = Page::of(&elsewhere).await;
    page.open(&format!("/iframe?{}", encoded(&format!("{portal}#token={token}")))).await;
    let shown = |path: &str| {
        format!(
            "location.pathname + location.hash === '{path}' && document.querySelector('.who')?.innerText === 'acme'"
        )
    };
    page.until_in_frame(&shown("/portal")).await;
    // A form of it is one of its own pages.
    page.in_frame("document.querySelector('nav a[href=\"/portal/subscriptions\"]').click()").await;
    page.until_in_frame(&shown("/portal/subscriptions")).await;
    page.in_frame("document.querySelector('a[href=\"/portal/subscriptions/new\"]').click()").await;
    page.until_in_frame(&shown("/portal/subscriptions/new")).await;
    page.in_frame(
        "document.querySelector('[name=callback_url]').value = 'http://127.0.0.1:9/hook';
         document.querySelector('[name=topics]').value = 'order.created';
         document.querySelector('[name=topics]').form.querySelector('button').click()",
    )
    .await;
    page.until_in_frame("document.body.innerText.includes('whsec_')").await;
    // The cookie stays: the same frame without a token is signed in.
    page.open(&format!("/iframe?{}", encoded(&format!("{portal}/events")))).await;
    page.until_in_frame(&shown("/portal/events")).await;

    // Another customer's link in the same frame changes no more than the fragment, and is followed all the same.
    page.open(&format!("/iframe?{}", encoded(&portal))).await;
    page.until_in_frame(&shown("/portal")).await;
    page.in_frame(&format!("location.href = '/portal#token={rivals}'")).await;
    page.until_in_frame("location.hash === '' && document.querySelector('.who')?.innerText === 'rival'")
        .await;
    assert_calm_elsewhere(&page);
}
