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
}
