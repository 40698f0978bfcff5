//! The deserializer that feeds made-up values to a type. It follows the rules of `serde_json` for
//! allowed values.

use std::cell::RefCell;
use std::fmt;

use serde::de::{
    self, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess, SeqAccess, VariantAccess,
    Visitor,
};

use super::{DEEPEST, Forced, Hint, Log, Node, Path, STRANGE, number, text};

/// Why a type did not accept a made-up value.
#[derive(Debug)]
pub(super) enum ProbeError {
    Missing(&'static str),
    Hole,
    Refused,
}

impl fmt::Display for ProbeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a made-up value is not read")
    }
}

impl std::error::Error for ProbeError {}

impl de::Error for ProbeError {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self::Refused
    }

    fn missing_field(field: &'static str) -> Self {
        Self::Missing(field)
    }
}

/// One place of the value.
pub(super) struct Reader<'t> {
    node: &'t Node,
    path: Path,
    /// The newtypes around this place that take no part of the path.
    n_newtypes: usize,
    log: &'t RefCell<Log>,
}

impl<'t> Reader<'t> {
    pub(super) fn new(node: &'t Node, log: &'t RefCell<Log>) -> Self {
        Self { node, path: Path::new(), n_newtypes: 0, log }
    }

    /// Records the request. Fails at a hole.
    fn note(&self, hint: Hint) -> Result<(), ProbeError> {
        let mut log = self.log.borrow_mut();
        log.last.clone_from(&self.path);
        if let Some(known) = self.node.hint {
            // The type asks for something else because another part of the value changed.
            let is_same = std::mem::discriminant(&known) == std::mem::discriminant(&hint);
            return if is_same { Ok(()) } else { Err(ProbeError::Refused) };
        }
        log.hints.push((self.path.clone(), hint));
        log.hole = Some(self.path.clone());
        Err(ProbeError::Hole)
    }

    fn below(&self, name: &str) -> Option<Self> {
        let (name, node) = self.node.children.iter().find(|(its, _)| its == name)?;
        let path = self.path.iter().chain([name]).cloned().collect();
        Some(Self { node, path, n_newtypes: 0, log: self.log })
    }

    fn number<'de, V: Visitor<'de>>(
        self,
        integers: Option<(i64, u64)>,
        visitor: V,
    ) -> Result<V::Value, ProbeError> {
        self.note(Hint::Number(integers))?;
        match self.node.forced {
            Some(Forced::Signed(number)) => visitor.visit_i64(number),
            Some(Forced::Unsigned(number)) => visitor.visit_u64(number),
            Some(Forced::Fraction(number)) => visitor.visit_f64(number),
            Some(Forced::StrangeName) | None => visitor.visit_u64(number(self.node.choice).into()),
        }
    }

    fn text<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProbeError> {
        self.note(Hint::Text)?;
        visitor.visit_str(text(self.node.choice))
    }

    fn any<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProbeError> {
        match self.node.hint {
            None | Some(Hint::Any) => self.note(Hint::Any)?,
            Some(Hint::Unit) => return visitor.visit_unit(),
            Some(Hint::Bool) => return visitor.visit_bool(true),
            Some(Hint::Number(integers)) => return self.number(integers, visitor),
            Some(Hint::Text) => return self.text(visitor),
            Some(hint @ (Hint::List | Hint::Tuple(_))) => return self.items(hint, visitor),
            Some(hint @ (Hint::Map | Hint::Struct(_))) => return self.entries(hint, visitor),
            Some(Hint::Option | Hint::Enum(_) | Hint::Content) => return Err(ProbeError::Refused),
        }
        match self.node.choice {
            0 => visitor.visit_unit(),
            1 => visitor.visit_str(text(0)),
            2 => visitor.visit_u64(number(0).into()),
            3 => visitor.visit_bool(true),
            4 => visitor.visit_map(Parts { of: &self, at: 0 }),
            _ => visitor.visit_seq(Parts { of: &self, at: 0 }),
        }
    }

    fn unit<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProbeError> {
        self.note(Hint::Unit)?;
        visitor.visit_unit()
    }

    fn items<'de, V: Visitor<'de>>(self, hint: Hint, visitor: V) -> Result<V::Value, ProbeError> {
        self.note(hint)?;
        visitor.visit_seq(Parts { of: &self, at: 0 })
    }

    fn entries<'de, V: Visitor<'de>>(self, hint: Hint, visitor: V) -> Result<V::Value, ProbeError> {
        self.note(hint)?;
        let read = visitor.visit_map(Parts { of: &self, at: 0 });
        if let Err(ProbeError::Missing(name)) = &read {
            let mut log = self.log.borrow_mut();
            log.missing.get_or_insert_with(|| (self.path.clone(), name));
            // The outer struct has its field.
            return Err(ProbeError::Refused);
        }
        read
    }
}

macro_rules! integers {
    ($($method:ident $type:ty, $min:expr, $max:expr;)*) => {
        $(
            fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProbeError> {
                self.number(Some(($min, $max)), visitor)
            }
        )*
    };
}

impl<'de> Deserializer<'de> for Reader<'_> {
    type Error = ProbeError;

    integers! {
        deserialize_i8 i8, i8::MIN.into(), 127;
        deserialize_i16 i16, i16::MIN.into(), 32_767;
        deserialize_i32 i32, i32::MIN.into(), 2_147_483_647;
        deserialize_i64 i64, i64::MIN, i64::MAX.unsigned_abs();
        deserialize_i128 i128, i64::MIN, u64::MAX;
        deserialize_u8 u8, 0, u8::MAX.into();
        deserialize_u16 u16, 0, u16::MAX.into();
        deserialize_u32 u32, 0, u32::MAX.into();
        deserialize_u64 u64, 0, u64::MAX;
        deserialize_u128 u128, 0, u64::MAX;
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProbeError> {
        self.any(visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProbeError> {
        self.any(visitor)
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProbeError> {
        self.any(visitor)
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProbeError> {
        self.any(visitor)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProbeError> {
        self.note(Hint::Bool)?;
        visitor.visit_bool(true)
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProbeError> {
        self.number(None, visitor)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProbeError> {
        self.number(None, visitor)
    }

    fn deserialize_char<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProbeError> {
        self.text(visitor)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProbeError> {
        self.text(visitor)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProbeError> {
        self.text(visitor)
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProbeError> {
        self.text(visitor)
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProbeError> {
        self.unit(visitor)
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, ProbeError> {
        self.unit(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProbeError> {
        self.note(Hint::Option)?;
        match self.below("") {
            Some(inner) => visitor.visit_some(inner),
            None => visitor.visit_none(),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, ProbeError> {
        // `serde_json` types that read raw text.
        if name.starts_with("$serde_json::") {
            return self.any(visitor);
        }
        // A newtype that contains only itself has no value, and would overflow the stack.
        if self.n_newtypes == DEEPEST {
            return Err(ProbeError::Refused);
        }
        visitor.visit_newtype_struct(Self { n_newtypes: self.n_newtypes + 1, ..self })
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProbeError> {
        self.items(Hint::List, visitor)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, ProbeError> {
        self.items(Hint::Tuple(len), visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, ProbeError> {
        self.items(Hint::Tuple(len), visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProbeError> {
        self.entries(Hint::Map, visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ProbeError> {
        self.entries(Hint::Struct(fields), visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ProbeError> {
        self.note(Hint::Enum(variants))?;
        let name = match self.node.forced {
            Some(_) => STRANGE,
            None => variants.get(self.node.choice).copied().unwrap_or(STRANGE),
        };
        visitor.visit_enum(Variant { name, of: self })
    }
}

/// The parts of a list, a map or a struct.
struct Parts<'p, 't> {
    of: &'p Reader<'t>,
    at: usize,
}

impl<'t> Parts<'_, 't> {
    fn next(&mut self) -> Option<Reader<'t>> {
        let (name, node) = self.of.node.children.get(self.at)?;
        self.at += 1;
        let path = self.of.path.iter().chain([name]).cloned().collect();
        Some(Reader { node, path, n_newtypes: 0, log: self.of.log })
    }
}

impl<'de> SeqAccess<'de> for Parts<'_, '_> {
    type Error = ProbeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, ProbeError> {
        self.next().map(|part| seed.deserialize(part)).transpose()
    }
}

impl<'de> MapAccess<'de> for Parts<'_, '_> {
    type Error = ProbeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, ProbeError> {
        let Some((name, _)) = self.of.node.children.get(self.at) else { return Ok(None) };
        self.of.log.borrow_mut().last.clone_from(&self.of.path);
        seed.deserialize(Key(name)).map(Some)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, ProbeError> {
        seed.deserialize(self.next().ok_or(ProbeError::Refused)?)
    }
}

/// A map key or a field name. JSON writes numeric keys as text.
struct Key<'k>(&'k str);

macro_rules! numeric_keys {
    ($($method:ident $visit:ident $type:ty;)*) => {
        $(
            fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProbeError> {
                visitor.$visit(self.0.parse::<$type>().map_err(|_| ProbeError::Refused)?)
            }
        )*
    };
}

impl<'de> Deserializer<'de> for Key<'_> {
    type Error = ProbeError;

    numeric_keys! {
        deserialize_i8 visit_i8 i8;
        deserialize_i16 visit_i16 i16;
        deserialize_i32 visit_i32 i32;
        deserialize_i64 visit_i64 i64;
        deserialize_i128 visit_i128 i128;
        deserialize_u8 visit_u8 u8;
        deserialize_u16 visit_u16 u16;
        deserialize_u32 visit_u32 u32;
        deserialize_u64 visit_u64 u64;
        deserialize_u128 visit_u128 u128;
        deserialize_f32 visit_f32 f32;
        deserialize_f64 visit_f64 f64;
        deserialize_bool visit_bool bool;
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProbeError> {
        visitor.visit_str(self.0)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ProbeError> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, ProbeError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ProbeError> {
        IntoDeserializer::<ProbeError>::into_deserializer(self.0).deserialize_enum(name, variants, visitor)
    }

    serde::forward_to_deserialize_any! {
        char str string bytes byte_buf unit unit_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

/// A variant of an enum.
struct Variant<'t> {
    name: &'static str,
    of: Reader<'t>,
}

impl<'de, 't> EnumAccess<'de> for Variant<'t> {
    type Error = ProbeError;
    type Variant = Content<'t>;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Content<'t>), ProbeError> {
        let name = seed.deserialize(IntoDeserializer::<ProbeError>::into_deserializer(self.name))?;
        let content = self.of.below("").ok_or(ProbeError::Refused)?;
        Ok((name, Content { of: content, is_strange: self.name == STRANGE }))
    }
}

/// The content of a variant.
struct Content<'t> {
    of: Reader<'t>,
    /// Whether the run only tests if the type accepts an unknown variant name.
    is_strange: bool,
}

impl<'de> VariantAccess<'de> for Content<'_> {
    type Error = ProbeError;

    fn unit_variant(self) -> Result<(), ProbeError> {
        if self.is_strange { Ok(()) } else { self.of.note(Hint::Unit) }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, ProbeError> {
        self.of.note(Hint::Content)?;
        seed.deserialize(self.of.below("").ok_or(ProbeError::Refused)?)
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, ProbeError> {
        self.of.items(Hint::Tuple(len), visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ProbeError> {
        self.of.entries(Hint::Struct(fields), visitor)
    }
}
