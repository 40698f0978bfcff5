//! A `timestamptz` in PostgreSQL's binary form: exact, comparable, and with both infinities, which
//! no calendar type has.

use sqlx::encode::IsNull;
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgArgumentBuffer, PgHasArrayType, PgTypeInfo, PgValueFormat, PgValueRef, Postgres};
use sqlx::{Decode, Encode, Type};

/// Microseconds since 2000-01-01 00:00 UTC, by the database's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(pub i64);

impl Instant {
    /// `-infinity`.
    pub const START: Self = Self(i64::MIN);
    /// `infinity`.
    pub const END: Self = Self(i64::MAX);

    /// Moves back by `micros`. Infinities do not change.
    pub fn back(self, micros: i64) -> Self {
        if self == Self::END { self } else { Self(self.0.saturating_sub(micros)) }
    }
}

impl Type<Postgres> for Instant {
    fn type_info() -> PgTypeInfo {
        PgTypeInfo::with_name("timestamptz")
    }
}

impl PgHasArrayType for Instant {
    fn array_type_info() -> PgTypeInfo {
        PgTypeInfo::with_name("_timestamptz")
    }
}

impl Encode<'_, Postgres> for Instant {
    fn encode_by_ref(&self, buffer: &mut PgArgumentBuffer) -> Result<IsNull, BoxDynError> {
        <i64 as Encode<'_, Postgres>>::encode(self.0, buffer)
    }
}

impl Decode<'_, Postgres> for Instant {
    fn decode(value: PgValueRef<'_>) -> Result<Self, BoxDynError> {
        if value.format() == PgValueFormat::Text {
            return Err("a timestamp came as text; only prepared statements may return one".into());
        }
        <i64 as Decode<'_, Postgres>>::decode(value).map(Self)
    }
}
