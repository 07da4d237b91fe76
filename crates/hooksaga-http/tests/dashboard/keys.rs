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
