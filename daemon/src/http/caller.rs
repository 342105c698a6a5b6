//! Who asks, as far as the server knows: whose KV and sessions a request may find, and how urgent it may be.

use actix_web::dev::Payload;
use actix_web::{FromRequest, HttpMessage, HttpRequest};
use std::convert::Infallible;
use std::future::{Ready, ready};
use zllm_wire::{Class, Submit, Tenant};

/// The caller of a request; without keys everybody is the same one.
#[derive(Debug, Clone, Default)]
pub(super) struct Caller {
    /// Whose it is; `None`: the tenant of those who name none.
    pub(super) tenant: Option<Tenant>,
    /// The most urgent class that it may have; `None`: any.
    pub(super) class: Option<Class>,
}

impl Caller {
    /// Makes a request the caller's.
    pub(super) fn own(&self, request: &mut Submit) {
        request.tenant.clone_from(&self.tenant);
        request.class = self.class.map_or(request.class, |most| request.class.max(most));
    }
}

impl FromRequest for Caller {
    type Error = Infallible;
    type Future = Ready<Result<Self, Infallible>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        ready(Ok(request.extensions().get::<Self>().cloned().unwrap_or_default()))
    }
}
