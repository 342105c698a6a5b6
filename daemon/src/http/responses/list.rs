//! Lists of items, a page at a time, and what is said of what was deleted.

use crate::http::body;
use crate::http::problem::Problem;
use actix_web::web;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::items::Item;

const DEFAULT_LIMIT: usize = 20;
const MAX_LIMIT: usize = 100;

/// Which items of a list.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "ItemsQuery")]
pub(super) struct Page {
    /// Those behind the one of this id.
    pub(super) after: Option<String>,
    /// From 1 to 100; 20 if it is not given.
    limit: Option<usize>,
    /// `desc`, the newest first, or `asc`.
    order: Option<Order>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Order {
    Asc,
    Desc,
}

/// A page of items.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ItemList")]
pub(super) struct List {
    /// `list`.
    object: &'static str,
    data: Vec<Item>,
    first_id: Option<String>,
    last_id: Option<String>,
    has_more: bool,
}

/// Something was deleted.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Removed {
    pub(super) id: String,
    pub(super) object: &'static str,
    pub(super) deleted: bool,
}

impl Page {
    /// # Errors
    /// A field that makes no sense.
    pub(super) fn read(query: Result<web::Query<Self>, actix_web::Error>) -> Result<Self, Problem> {
        let page = body::query(query)?;
        match page.limit {
            Some(limit) if !(1..=MAX_LIMIT).contains(&limit) => {
                Err(Problem::of("limit", format!("limit is {limit}, must be from 1 to {MAX_LIMIT}")))
            }
            _ => Ok(page),
        }
    }

    pub(super) fn limit(&self) -> usize {
        self.limit.unwrap_or(DEFAULT_LIMIT)
    }

    pub(super) fn is_newest_first(&self) -> bool {
        self.order != Some(Order::Asc)
    }

    pub(super) fn no_such_item(&self) -> Problem {
        let shown: String = self.after.iter().flat_map(|after| after.chars()).take(100).collect();
        Problem::of("after", format!("there is no item {shown:?}"))
    }

    /// This page of all items, the oldest first.
    pub(super) fn of(&self, mut items: Vec<Item>) -> Result<List, Problem> {
        if self.is_newest_first() {
            items.reverse();
        }
        if let Some(after) = &self.after {
            let place =
                items.iter().position(|item| item.id() == after).ok_or_else(|| self.no_such_item())?;
            items.drain(..=place);
        }
        Ok(List::first(items, self.limit()))
    }
}

impl List {
    /// The first of some items.
    pub(super) fn first(mut items: Vec<Item>, limit: usize) -> Self {
        let has_more = items.len() > limit;
        items.truncate(limit);
        let id = |item: Option<&Item>| item.map(|item| item.id().to_owned());
        let (first_id, last_id) = (id(items.first()), id(items.last()));
        Self { object: "list", data: items, first_id, last_id, has_more }
    }
}
