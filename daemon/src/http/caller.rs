//! Who asks: whose KV and sessions a request may find, how urgent it may be, and whether it may see and steer everything.

use super::problem::{Kind, Problem};
use actix_web::dev::Payload;
use actix_web::{FromRequest, HttpMessage, HttpRequest};
use std::convert::Infallible;
use std::future::{Ready, ready};
use zllm_wire::{Class, KeyName, KeySettings, Submit, Tenant};

/// The caller of a request, as [`super::edge`] found it.
#[derive(Debug, Clone, Default)]
pub(super) struct Caller {
    /// Whose it is; `None`: the tenant of those who name none.
    pub(super) tenant: Option<Tenant>,
    /// The most urgent class that it may have; `None`: any.
    pub(super) class: Option<Class>,
    /// Whether all that the daemon has is its business, whose ever it is.
    pub(super) admin: bool,
    /// The name of its key, if it has one.
    pub(super) key: Option<KeyName>,
}

impl Caller {
    /// One that needs no key: over the Unix socket, or over loopback while there are no keys.
    pub(super) fn trusted() -> Self {
        Self { admin: true, ..Self::default() }
    }

    /// One that has a key.
    pub(super) fn of(key: &KeySettings) -> Self {
        Self {
            tenant: Some(key.tenant.clone()),
            class: Some(key.class),
            admin: key.admin,
            key: Some(key.name.clone()),
        }
    }

    /// Whoever has this tenant's name, for work that goes on without its client.
    pub(super) fn of_tenant(tenant: &str) -> Self {
        Self { tenant: Tenant::new(tenant).ok(), ..Self::default() }
    }

    /// The tenant's name in stores: empty for the common one.
    pub(super) fn tenant_name(&self) -> &str {
        self.tenant.as_ref().map_or("", Tenant::as_str)
    }

    /// # Errors
    /// It is not for this caller.
    pub(super) fn must_be_admin(&self) -> Result<(), Problem> {
        if self.admin {
            return Ok(());
        }
        Err(Problem::new(
            Kind::Forbidden,
            "this is for keys that were added with --admin, and for the Unix socket",
        ))
    }

    /// Makes a request the caller's.
    pub(super) fn own(&self, request: &mut Submit) {
        request.tenant.clone_from(&self.tenant);
        request.class = self.class(request.class);
    }

    /// The class that it gets for this one.
    pub(super) fn class(&self, asked: Class) -> Class {
        self.class.map_or(asked, |most| asked.max(most))
    }
}

impl FromRequest for Caller {
    type Error = Infallible;
    type Future = Ready<Result<Self, Infallible>>;

    fn from_request(request: &HttpRequest, _: &mut Payload) -> Self::Future {
        ready(Ok(request.extensions().get::<Self>().cloned().unwrap_or_default()))
    }
}
