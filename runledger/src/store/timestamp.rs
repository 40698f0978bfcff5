//! `timestamptz` on the wire: microseconds since 2000-01-01, converted to and from [`Timestamp`].

use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgArgumentBuffer, PgHasArrayType, PgTypeInfo, PgValueFormat, PgValueRef};
use sqlx::{Decode, Encode, Postgres, Type};

use crate::model::timestamp::Timestamp;

/// Microseconds from the Unix epoch to PostgreSQL's epoch.
const EPOCH: i64 = 946_684_800_000_000;

/// The types of `timestamptz` and of its array, the same in every PostgreSQL. The driver would look
/// up a name with one query per connection.
const TIMESTAMPTZ: Oid = Oid(1184);
const TIMESTAMPTZ_ARRAY: Oid = Oid(1185);

impl Type<Postgres> for Timestamp {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(TIMESTAMPTZ)
    }
}

impl PgHasArrayType for Timestamp {
    fn array_type_info() -> PgTypeInfo {
        PgTypeInfo::with_oid(TIMESTAMPTZ_ARRAY)
    }
}

impl Encode<'_, Postgres> for Timestamp {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        let micros = self.unix_micros().saturating_sub(EPOCH);
        <i64 as Encode<'_, Postgres>>::encode_by_ref(&micros, buffer)
    }
}

impl<'r> Decode<'r, Postgres> for Timestamp {
    fn decode(value: PgValueRef<'r>) -> Result<Self, BoxDynError> {
        match value.format() {
            PgValueFormat::Binary => {
                let micros = i64::from_be_bytes(value.as_bytes()?.try_into()?);
                Ok(Self::from_unix_micros(micros.saturating_add(EPOCH)))
            }
            PgValueFormat::Text => {
                Err("a timestamp came as text; only prepared statements read timestamps".into())
            }
        }
    }
}
