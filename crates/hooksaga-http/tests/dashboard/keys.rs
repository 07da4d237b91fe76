//! The page of keys.

use super::*;

#[tokio::test]
async fn keys_are_seen_and_revoked_by_those_who_administer_the_whole_server() {
    let api = TestApi::new().await;
    let (reader, bound) = (api.key("read").await, api.key_of("acme").await);
    for key in [&reader, &bound] {
        let browser = Browser::dashboard(&api, key).await;
        assert!(!browser.page("").await.contains("href=\"/keys\""), "it is not offered");
        assert_eq!(browser.get("/keys").await.status, 403);
        assert_eq!(browser.post("/keys/1/revoke", &[]).await.status, 403);
    }
    assert_eq!(Browser::portal(&api, &bound).await.get("/keys").await.status, 404);

    let browser = Browser::dashboard(&api, ROOT_KEY).await;
    let page = browser.page("/keys").await;
    assert!(page.contains("acme") && !page.contains(&reader) && !page.contains(&bound));
    assert_eq!(browser.post("/keys/987654/revoke", &[]).await.status, 404);
    let revoked = browser.post("/keys/1/revoke", &[]).await;
    assert!(revoked.text().contains("is revoked") && !revoked.text().contains("/keys/1/revoke"));

    // Of all that, only what was done is recorded.
    let records = api.get("/v1/audit?action=key.revoke").await.expect(200);
    let records: Vec<_> = records["items"].as_array().unwrap().iter().collect();
    assert_eq!(records.len(), 1, "{records:?}");
    assert_eq!((&records[0]["target"], &records[0]["key_name"]), (&json!("keys/1"), &json!("root")));
}

#[tokio::test]
async fn portal_sessions_hide_no_key() {
    let api = TestApi::new().await;
    api.key("read").await;
    for _ in 0..60 {
        api.post("/v1/portal-sessions", &json!({"tenant": "acme"})).await.expect(201);
    }
    let browser = Browser::dashboard(&api, ROOT_KEY).await;
    let keys = browser.page("/keys").await;
    assert!(keys.contains("id=\"key-1\"") && !keys.contains("id=\"key-2\""), "{keys}");
    assert!(keys.contains("<a href=\"/keys\" aria-current=\"true\">Keys</a>"), "{keys}");
    let sessions = browser.page("/keys?show=sessions").await;
    assert!(sessions.contains("id=\"key-61\"") && !sessions.contains("id=\"key-1\""), "{sessions}");
    let older = sessions.split('"').find(|part| part.contains("cursor=")).unwrap().replace("&amp;", "&");
    assert!(browser.page(&older).await.contains("id=\"key-2\""), "{older}");

    // What is revoked leaves the list that it stood on, which stays.
    let fields = [("filter.show", "sessions")];
    let revoked = browser.post("/keys/61/revoke", &fields).await;
    assert!(revoked.text().contains("id=\"key-60\"") && !revoked.text().contains("id=\"key-61\""));
    let ended = browser.page("/keys?show=ended").await;
    assert!(ended.contains("id=\"key-61\"") && !ended.contains("id=\"key-60\""), "{ended}");
    api.key("ingest").await;
    browser.post("/keys/62/revoke", &[]).await;
    let ended = browser.page("/keys?show=ended").await;
    let row = ended.split("id=\"key-62\"").nth(1).unwrap().split("</tr>").next().unwrap();
    assert!(row.contains("<td data-name=\"Ends\"><time"), "when it was revoked: {row}");
    assert_eq!(browser.get("/keys?show=all").await.status, 422);
}
