//! The configurable preset: any HMAC scheme with one signature in one header, without code.

use std::borrow::Cow;
use std::time::Duration;

use crate::domain::fingerprint::Rule;
use crate::domain::json;

use super::SettingError;
use super::declared::Declared;
use super::headers::is_name;
use super::key::KeyForm;
use super::mac::Algorithm;
use super::options::{EventId, HmacOptions};
use super::reading::{EventRules, Field, Format, Otherwise};
use super::samples::Samples;
use super::scheme::{Layout, Scheme, Stamp, StampFrom};
use super::template::{Part, Template};

pub(crate) const NAME: &str = "hmac";
pub(crate) const ABOUT: &str =
    "any HMAC in one header: the source's [source.hmac] says what is signed and how it is written";
pub(crate) const COVERS: &str = "what the source's `signed` template names; the body always";

const RULES: &[Rule] = &[Rule {
    number: 1,
    volatile: &[],
}];

/// Makes a table entry of the options.
///
/// # Errors
///
/// [`SettingError`] naming the option that cannot be kept.
pub(crate) fn declare(options: &HmacOptions) -> Result<Declared, SettingError> {
    header("header", &options.header)?;
    let template = Template::parse(&options.signed)
        .map_err(|SettingError(why)| SettingError(format!("hmac.signed: {why}")))?;
    if !template.uses(&Part::Body) {
        return Err(refuse(
            "hmac.signed must contain {body}: else anybody could change the body",
        ));
    }
    let stamp = stamp(options, &template)?;
    let id = match &options.event_id {
        None => Vec::new(),
        Some(EventId::One(text)) => vec![field("event_id", text)?],
        Some(EventId::Several(texts)) if texts.is_empty() => {
            return Err(refuse("hmac.event_id is an empty list"));
        }
        Some(EventId::Several(texts)) => texts
            .iter()
            .map(|text| field("event_id", text))
            .collect::<Result<_, _>>()?,
    };
    let id_header = match (template.uses(&Part::Id), id.first()) {
        (false, _) => None,
        (true, Some(Field::Header(name))) => Some(name.clone()),
        (true, _) => {
            return Err(refuse(
                "hmac.signed names {id}, so hmac.event_id must be (or begin with) \"header:NAME\"",
            ));
        }
    };
    let names: Vec<&str> = id
        .iter()
        .filter_map(|field| match field {
            Field::Header(name) => Some(name.as_ref()),
            Field::Json(_) => None,
        })
        .collect();
    if !template.sets_apart(&names) {
        return Err(refuse(
            "hmac.signed must have a text between the event id and what stands beside it: else one signed text could be cut into another id and another body",
        ));
    }
    let event_type = optional("event_type", options.event_type.as_deref())?;
    let entity = optional("entity", options.entity.as_deref())?;
    let reads_body = id
        .iter()
        .chain(&event_type)
        .chain(&entity)
        .any(|field| matches!(field, Field::Json(_)));
    Ok(Declared {
        name: NAME,
        dialect: None,
        about: ABOUT,
        covers: COVERS,
        scheme: Scheme {
            algorithm: Algorithm::Hmac(options.hash),
            header: Cow::Owned(options.header.clone()),
            layout: Layout::Single {
                prefix: Cow::Owned(options.prefix.clone()),
            },
            encoding: options.encoding,
            signed: Cow::Owned(options.signed.clone()),
            stamp,
            tolerance: Duration::from_mins(5),
            id_header,
            key: KeyForm::Text { blanks: true },
        },
        event: EventRules {
            format: if reads_body {
                Format::Json { form_field: None }
            } else {
                Format::Any
            },
            otherwise: if id.is_empty() {
                Otherwise::Content
            } else {
                Otherwise::Unreadable
            },
            id: id
                .into_iter()
                .map(|field| Cow::Owned(vec![field]))
                .collect(),
            named: &[],
            event_type,
            entity: entity.into_iter().collect(),
            account: &[],
            mode: None,
            occurred_at: None,
            ignored: &[],
            rules: RULES,
        },
        stored: &[],
        reply: None,
        samples: Samples::ByRules {
            types: &["order.paid", "order.refunded"],
        },
    })
}

fn stamp(options: &HmacOptions, template: &Template) -> Result<Option<Stamp>, SettingError> {
    match (&options.timestamp_header, template.uses(&Part::Timestamp)) {
        (None, false) => Ok(None),
        (None, true) => Err(refuse(
            "hmac.signed names {timestamp}, so hmac.timestamp_header is required",
        )),
        (Some(_), false) => Err(refuse(
            "hmac.signed must contain {timestamp}: a time that is not signed can be changed by anybody",
        )),
        (Some(name), true) => {
            header("timestamp_header", name)?;
            Ok(Some(Stamp {
                from: StampFrom::Header(Cow::Owned(name.clone())),
                unit: options.timestamp_unit,
            }))
        }
    }
}

fn optional(option: &str, text: Option<&str>) -> Result<Option<Field>, SettingError> {
    text.map(|text| field(option, text)).transpose()
}

fn field(option: &str, text: &str) -> Result<Field, SettingError> {
    if let Some(pointer) = text.strip_prefix("json:")
        && !pointer.is_empty()
        && json::valid_pointer(pointer)
    {
        return Ok(Field::Json(Cow::Owned(pointer.to_owned())));
    }
    if let Some(name) = text.strip_prefix("header:")
        && is_name(name)
    {
        return Ok(Field::Header(Cow::Owned(name.to_owned())));
    }
    Err(SettingError(format!(
        "hmac.{option}: {text:?} is neither \"json:/pointer\" nor \"header:NAME\""
    )))
}

fn header(option: &str, name: &str) -> Result<(), SettingError> {
    if is_name(name) {
        return Ok(());
    }
    Err(SettingError(format!(
        "hmac.{option}: {name:?} is no header name"
    )))
}

fn refuse(why: &str) -> SettingError {
    SettingError(why.to_owned())
}
