//! The webhook routes inside somebody else's application.

use actix_web::{App, HttpResponse, HttpServer, middleware, web};
use oncehook::http::{Inbox, Limits};

use super::wire::{Wire, status};
use super::{BODY_BYTES, body_of, event, header, signed_fields, start};

#[tokio::test]
async fn f10_the_limits_travel_with_the_scope() {
    let service = start().await;
    let limits = Limits {
        body_bytes: BODY_BYTES,
        ..Limits::default()
    };
    let inbox = Inbox::new(service.engine.clone(), limits);
    let server = HttpServer::new(move || {
        App::new()
            .wrap(middleware::NormalizePath::trim())
            .wrap(middleware::DefaultHeaders::new().add(("X-Theirs", "1")))
            .app_data(web::PayloadConfig::new(1))
            .app_data(web::JsonConfig::default().limit(1))
            .service(web::scope("/pay").service(inbox.scope()))
            .service(web::resource("/theirs").to(HttpResponse::Ok))
    })
    .workers(1)
    .disable_signals()
    .bind(("127.0.0.1", 0))
    .unwrap();
    let address = server.addrs()[0];
    let server = server.run();
    let handle = server.handle();
    let serving = tokio::spawn(server);

    let large = format!("{}{}", event("evt_1"), " ".repeat(BODY_BYTES));
    for (target, body, expected) in [
        ("/pay/webhooks/plain", &event("evt_1"), 200),
        ("/pay/webhooks/plain/", &event("evt_1"), 200),
        ("/pay/webhooks/plain", &large, 413),
        ("/pay/webhooks/none", &event("evt_1"), 404),
        ("/theirs", &event("evt_1"), 200),
    ] {
        let mut wire = Wire::open(address).await;
        wire.head(target, &signed_fields(body)).await;
        wire.send(body).await;
        let answer = wire.answer().await;
        assert_eq!(status(&answer), expected, "{target}");
        assert_eq!(header(&answer, "X-Theirs"), Some("1"));
        assert_eq!(
            body_of(&answer).contains("urn:oncehook"),
            expected >= 400,
            "{target}"
        );
    }
    handle.stop(false).await;
    serving.await.unwrap().unwrap();
    service.stop().await;
}
