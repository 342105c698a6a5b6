//! `/v1/files`: files that clients put down, for batches mostly, and those that batches write.
//!
//! A file goes to the object store in pieces as it comes, and comes out of it so; none is in memory whole.

use crate::http::caller::Caller;
use crate::http::problem::{Kind, Problem};
use crate::http::{Http, body};
use crate::limits::{
    FILE_EXPIRY_S, HTTP_BODY_TIMEOUT, HTTP_FILE_BYTES, HTTP_FILE_TIMEOUT, MAX_FILE_FIELD_BYTES, MAX_PAGE_ROWS,
};
use crate::object_disk::Upload;
use actix_multipart::{Field, Multipart};
use actix_web::http::header::{self, HeaderValue};
use actix_web::{HttpResponse, web};
use futures_util::{StreamExt, TryStreamExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use zllm_state::{Object, ObjectName, ObjectOrder};

/// What files are called in the object store.
const KIND: &str = "file";

/// A file.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct File {
    id: String,
    /// `file`.
    object: &'static str,
    bytes: u64,
    /// Seconds since the Unix epoch, as all times here.
    created_at: u64,
    expires_at: Option<u64>,
    filename: String,
    purpose: String,
    /// `processed`.
    status: &'static str,
}

/// What is stored of it beside its content.
#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    filename: String,
    purpose: String,
}

/// When a file goes by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "FileExpiresAfter")]
pub(super) struct ExpiresAfter {
    /// `created_at`.
    anchor: String,
    /// Since it was made; from an hour to 30 days.
    seconds: u64,
}

/// Files.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "FileList")]
pub(super) struct List {
    /// `list`.
    object: &'static str,
    data: Vec<File>,
    first_id: Option<String>,
    last_id: Option<String>,
    has_more: bool,
}

/// Which of them.
#[derive(Debug, Deserialize, JsonSchema)]
pub(super) struct Query {
    purpose: Option<String>,
    /// At most 10,000.
    limit: Option<usize>,
    /// The last file of the page before.
    after: Option<String>,
    /// `asc` or `desc`, the default: those that came last first.
    order: Option<String>,
}

/// A file that is deleted.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Deleted {
    id: String,
    /// `file`.
    object: &'static str,
    deleted: bool,
}

impl File {
    fn of(object: &Object) -> Result<Self, Problem> {
        let stored: Stored = serde_json::from_slice(&object.value).map_err(|error| {
            Problem::new(Kind::Failed, format!("a file's record cannot be read: {error}"))
        })?;
        Ok(Self {
            id: object.name.id.clone(),
            object: "file",
            bytes: object.content.map_or(0, |content| content.bytes()),
            created_at: object.created_ms / 1000,
            expires_at: object.expires_ms.map(|at| at / 1000),
            filename: stored.filename,
            purpose: stored.purpose,
            status: "processed",
        })
    }
}

impl ExpiresAfter {
    /// # Errors
    /// Not as OpenAI has it; `param` is what the client calls it.
    pub(super) fn check(&self, param: &str) -> Result<(), Problem> {
        if self.anchor != "created_at" {
            return Err(Problem::of(
                param,
                format!("{param}: anchor is not \"created_at\", the only one there is"),
            ));
        }
        if !FILE_EXPIRY_S.contains(&self.seconds) {
            let (least, most) = (FILE_EXPIRY_S.start(), FILE_EXPIRY_S.end());
            let message = format!("{param}: seconds is {}, must be from {least} to {most}", self.seconds);
            return Err(Problem::of(param, message));
        }
        Ok(())
    }

    /// That of a form, which has a field for each of its parts.
    fn of_form(anchor: Option<String>, seconds: Option<String>) -> Result<Option<Self>, Problem> {
        const PARAM: &str = "expires_after";
        let (anchor, seconds) = match (anchor, seconds) {
            (None, None) => return Ok(None),
            (Some(anchor), Some(seconds)) => (anchor, seconds.parse()),
            _ => return Err(Problem::of(PARAM, "expires_after has an anchor and seconds; one is missing")),
        };
        let seconds = seconds.map_err(|_| Problem::of(PARAM, "expires_after: seconds is no number"))?;
        let expires_after = Self { anchor, seconds };
        expires_after.check(PARAM)?;
        Ok(Some(expires_after))
    }
}

/// A file of this caller's.
///
/// # Errors
/// There is none, or the disk fails.
pub(super) async fn find(http: &Http, caller: &Caller, id: &str) -> Result<Object, Problem> {
    let name = ObjectName::new(KIND, caller.tenant_name(), id);
    http.services.objects.get(name).await?.ok_or_else(|| {
        let shown: String = id.chars().take(100).collect();
        Problem::new(Kind::NotFound, format!("there is no file {shown:?}"))
    })
}

/// The record of a new file; its content is the upload's.
pub(super) fn record(
    http: &Http,
    caller: &Caller,
    (filename, purpose): (&str, &str),
    expires_after: Option<&ExpiresAfter>,
) -> Object {
    let created_ms = http.services.clock.unix_ms();
    let stored = Stored { filename: filename.to_owned(), purpose: purpose.to_owned() };
    Object {
        name: ObjectName::new(KIND, caller.tenant_name(), &http.fresh_id("file-")),
        created_ms,
        expires_ms: expires_after.map(|after| created_ms + after.seconds * 1000),
        value: serde_json::to_vec(&stored).expect("two texts become JSON"),
        content: None,
    }
}

pub(super) async fn create(
    http: web::Data<Http>,
    caller: Caller,
    form: Multipart,
) -> Result<HttpResponse, Problem> {
    let taken = tokio::time::timeout(HTTP_FILE_TIMEOUT, take(&http, form)).await;
    let Form { upload, filename, purpose, expires_after } = taken.unwrap_or_else(|_| {
        let seconds = HTTP_FILE_TIMEOUT.as_secs();
        Err(Problem::new(Kind::Slow, format!("the file did not come within {seconds} s")))
    })?;
    let record = record(&http, &caller, (&filename, &purpose), expires_after.as_ref());
    let name = record.name.clone();
    upload.put(record).await?;
    let stored = find(&http, &caller, &name.id).await?;
    Ok(HttpResponse::Ok().json(File::of(&stored)?))
}

/// What a form has.
struct Form {
    upload: Upload,
    filename: String,
    purpose: String,
    expires_after: Option<ExpiresAfter>,
}

async fn take(http: &Http, mut form: Multipart) -> Result<Form, Problem> {
    let (mut file, mut purpose, mut anchor, mut seconds) = (None, None, None, None);
    while let Some(mut field) = next(form.next()).await? {
        match field.name() {
            Some("purpose") => purpose = Some(text("purpose", &mut field).await?),
            Some("expires_after[anchor]") => anchor = Some(text("expires_after", &mut field).await?),
            Some("expires_after[seconds]") => seconds = Some(text("expires_after", &mut field).await?),
            Some("file") => {
                let name = field.content_disposition().and_then(|head| head.get_filename());
                let name = name.unwrap_or("file").chars().filter(|c| !c.is_control()).take(255).collect();
                let mut upload = http.services.objects.upload()?;
                while let Some(chunk) = next(field.next()).await? {
                    if upload.bytes() + chunk.len() as u64 > HTTP_FILE_BYTES {
                        let message = format!("the file has more than {HTTP_FILE_BYTES} bytes");
                        return Err(Problem::new(Kind::TooLarge, message));
                    }
                    upload.write(&chunk).await?;
                }
                file = Some((upload, name));
            }
            // As OpenAI does with what it does not know.
            _ => while next(field.next()).await?.is_some() {},
        }
    }
    let purpose = purpose.filter(|purpose| !purpose.is_empty());
    let purpose = purpose.ok_or_else(|| Problem::of("purpose", "purpose is missing, such as \"batch\""))?;
    let (upload, filename) = file.ok_or_else(|| Problem::of("file", "file is missing"))?;
    let expires_after = ExpiresAfter::of_form(anchor, seconds)?;
    Ok(Form { upload, filename, purpose, expires_after })
}

/// The next part of a form, in time.
async fn next<T>(
    part: impl Future<Output = Option<Result<T, actix_multipart::MultipartError>>>,
) -> Result<Option<T>, Problem> {
    let part = tokio::time::timeout(HTTP_BODY_TIMEOUT, part).await.map_err(|_| {
        let seconds = HTTP_BODY_TIMEOUT.as_secs();
        Problem::new(Kind::Slow, format!("nothing of the form came for {seconds} s"))
    })?;
    part.transpose()
        .map_err(|error| Problem::new(Kind::Invalid, format!("the form is not as expected: {error}")))
}

async fn text(name: &str, field: &mut Field) -> Result<String, Problem> {
    let mut text = Vec::new();
    while let Some(chunk) = next(field.next()).await? {
        if text.len() + chunk.len() > MAX_FILE_FIELD_BYTES {
            let message = format!("{name} has more than {MAX_FILE_FIELD_BYTES} bytes");
            return Err(Problem::of(name, message));
        }
        text.extend_from_slice(&chunk);
    }
    String::from_utf8(text).map_err(|_| Problem::of(name, format!("{name} is not UTF-8")))
}

pub(super) async fn list(
    http: web::Data<Http>,
    caller: Caller,
    query: Result<web::Query<Query>, actix_web::Error>,
) -> Result<HttpResponse, Problem> {
    let query = body::query(query)?;
    let limit = page_limit(query.limit, MAX_PAGE_ROWS)?;
    let order = match query.order.as_deref() {
        None | Some("desc") => ObjectOrder::NewestFirst,
        Some("asc") => ObjectOrder::OldestFirst,
        Some(_) => return Err(Problem::of("order", "order is neither \"asc\" nor \"desc\"")),
    };
    let (mut data, mut after, mut has_more) = (Vec::new(), query.after.clone(), false);
    // Pages of the store, until there are enough of the purpose.
    'pages: loop {
        let tenant = caller.tenant_name().to_owned();
        let page = http.services.objects.list(KIND, tenant, after.clone(), limit, order).await?;
        let page = page.ok_or_else(|| Problem::of("after", "after names no file"))?;
        let full = page.len() == limit;
        after = page.last().map(|object| object.name.id.clone());
        for object in &page {
            let file = File::of(object)?;
            if query.purpose.as_ref().is_none_or(|purpose| *purpose == file.purpose) {
                if data.len() == limit {
                    has_more = true;
                    break 'pages;
                }
                data.push(file);
            }
        }
        if !full {
            break;
        }
    }
    let [first_id, last_id] = [data.first(), data.last()].map(|file| file.map(|file: &File| file.id.clone()));
    Ok(HttpResponse::Ok().json(List { object: "list", data, first_id, last_id, has_more }))
}

/// How many rows a page has.
///
/// # Errors
/// None, or more than `most`.
pub(super) fn page_limit(limit: Option<usize>, most: usize) -> Result<usize, Problem> {
    let limit = limit.unwrap_or(most);
    if (1..=most).contains(&limit) {
        return Ok(limit);
    }
    Err(Problem::of("limit", format!("limit is {limit}, must be from 1 to {most}")))
}

pub(super) async fn one(
    http: web::Data<Http>,
    caller: Caller,
    id: web::Path<String>,
) -> Result<HttpResponse, Problem> {
    Ok(HttpResponse::Ok().json(File::of(&find(&http, &caller, &id).await?)?))
}

pub(super) async fn delete(
    http: web::Data<Http>,
    caller: Caller,
    id: web::Path<String>,
) -> Result<HttpResponse, Problem> {
    let object = find(&http, &caller, &id).await?;
    let deleted = http.services.objects.delete(object.name).await?;
    Ok(HttpResponse::Ok().json(Deleted { id: id.into_inner(), object: "file", deleted }))
}

pub(super) async fn content(
    http: web::Data<Http>,
    caller: Caller,
    id: web::Path<String>,
) -> Result<HttpResponse, Problem> {
    let object = find(&http, &caller, &id).await?;
    let bytes = object.content.map_or(0, |content| content.bytes());
    let pieces = pieces(http, object).map_ok(web::Bytes::from);
    Ok(HttpResponse::Ok()
        .content_type("application/octet-stream")
        .insert_header((header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")))
        .no_chunking(bytes)
        .streaming(pieces))
}

/// The pieces of an object's content, in order.
pub(super) fn pieces(
    http: web::Data<Http>,
    object: Object,
) -> impl futures_util::Stream<Item = Result<Vec<u8>, Problem>> + Unpin {
    let content = object.content;
    let numbers = futures_util::stream::iter(0..content.map_or(0, |content| content.pieces()));
    Box::pin(numbers.then(move |number| {
        let http = http.clone();
        async move {
            let content = content.expect("it has a piece");
            let gone = || Problem::new(Kind::NotFound, "the file went while it was read");
            http.services.objects.piece(content, number).await?.ok_or_else(gone)
        }
    }))
}
