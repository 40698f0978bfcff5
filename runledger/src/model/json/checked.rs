//! A serializer that wraps another one. It refuses values that `serde_json` would silently replace,
//! or that would make it panic: a float that is not finite (it writes `null`, which then looks like
//! a `None`), and a `Display` that fails (it panics).

use std::fmt::{self, Display};

use serde::ser::{self, Error as _, Serialize, Serializer};

use super::guard::{Refusal, Rules};

/// A serializer, or a compound of one, with its rules.
pub(super) struct Checked<'r, S> {
    pub(super) to: S,
    pub(super) rules: &'r Rules,
}

/// A value inside a compound. It wraps its serializer in [`Checked`].
struct Inner<'r, 'v, T: ?Sized> {
    value: &'v T,
    rules: &'r Rules,
}

impl<T: Serialize + ?Sized> Serialize for Inner<'_, '_, T> {
    #[inline]
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(Checked { to, rules: self.rules })
    }
}

/// A `Display` whose failure is recorded and not passed on, unless the text itself was refused.
struct Shown<'r, 'v, T: ?Sized> {
    value: &'v T,
    rules: &'r Rules,
}

impl<T: Display + ?Sized> Display for Shown<'_, '_, T> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let result = self.value.fmt(to);
        if result.is_err() && self.rules.refusal().is_none() {
            self.rules.refuse(Refusal::Display);
            return Ok(());
        }
        result
    }
}

macro_rules! forward {
    ($($method:ident($($name:ident: $type:ty),*);)*) => {
        $(
            #[inline]
            fn $method(self, $($name: $type),*) -> Result<S::Ok, S::Error> {
                self.to.$method($($name),*)
            }
        )*
    };
}

macro_rules! forward_float {
    ($($method:ident($type:ty);)*) => {
        $(
            #[inline]
            fn $method(self, value: $type) -> Result<S::Ok, S::Error> {
                if !value.is_finite() {
                    return Err(S::Error::custom(self.rules.refuse(Refusal::NotFinite)));
                }
                self.to.$method(value)
            }
        )*
    };
}

macro_rules! open {
    ($($method:ident($($name:ident: $type:ty),*) -> $compound:ident;)*) => {
        $(
            #[inline]
            fn $method(self, $($name: $type),*) -> Result<Self::$compound, S::Error> {
                let Self { to, rules } = self;
                Ok(Checked { to: to.$method($($name),*)?, rules })
            }
        )*
    };
}

impl<'r, S: Serializer> Serializer for Checked<'r, S> {
    type Ok = S::Ok;
    type Error = S::Error;
    type SerializeSeq = Checked<'r, S::SerializeSeq>;
    type SerializeTuple = Checked<'r, S::SerializeTuple>;
    type SerializeTupleStruct = Checked<'r, S::SerializeTupleStruct>;
    type SerializeTupleVariant = Checked<'r, S::SerializeTupleVariant>;
    type SerializeMap = Checked<'r, S::SerializeMap>;
    type SerializeStruct = Checked<'r, S::SerializeStruct>;
    type SerializeStructVariant = Checked<'r, S::SerializeStructVariant>;

    forward! {
        serialize_bool(value: bool);
        serialize_i8(value: i8);
        serialize_i16(value: i16);
        serialize_i32(value: i32);
        serialize_i64(value: i64);
        serialize_i128(value: i128);
        serialize_u8(value: u8);
        serialize_u16(value: u16);
        serialize_u32(value: u32);
        serialize_u64(value: u64);
        serialize_u128(value: u128);
        serialize_char(value: char);
        serialize_str(value: &str);
        serialize_bytes(value: &[u8]);
        serialize_none();
        serialize_unit();
        serialize_unit_struct(name: &'static str);
        serialize_unit_variant(name: &'static str, index: u32, variant: &'static str);
    }

    forward_float! {
        serialize_f32(f32);
        serialize_f64(f64);
    }

    open! {
        serialize_seq(len: Option<usize>) -> SerializeSeq;
        serialize_tuple(len: usize) -> SerializeTuple;
        serialize_tuple_struct(name: &'static str, len: usize) -> SerializeTupleStruct;
        serialize_tuple_variant(name: &'static str, index: u32, variant: &'static str, len: usize)
            -> SerializeTupleVariant;
        serialize_map(len: Option<usize>) -> SerializeMap;
        serialize_struct(name: &'static str, len: usize) -> SerializeStruct;
        serialize_struct_variant(name: &'static str, index: u32, variant: &'static str, len: usize)
            -> SerializeStructVariant;
    }

    #[inline]
    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        self.to.serialize_some(&Inner { value, rules: self.rules })
    }

    #[inline]
    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        self.to.serialize_newtype_struct(name, &Inner { value, rules: self.rules })
    }

    #[inline]
    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        self.to.serialize_newtype_variant(name, index, variant, &Inner { value, rules: self.rules })
    }

    fn collect_str<T: Display + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        let Self { to, rules } = self;
        let done = to.collect_str(&Shown { value, rules })?;
        match rules.refusal() {
            None => Ok(done),
            Some(_) => Err(S::Error::custom("a `Display` implementation returned an error")),
        }
    }

    fn is_human_readable(&self) -> bool {
        self.to.is_human_readable()
    }
}

macro_rules! forward_items {
    ($($trait:ident::$method:ident;)*) => {
        $(
            impl<S: ser::$trait> ser::$trait for Checked<'_, S> {
                type Ok = S::Ok;
                type Error = S::Error;

                #[inline]
                fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), S::Error> {
                    self.to.$method(&Inner { value, rules: self.rules })
                }

                #[inline]
                fn end(self) -> Result<S::Ok, S::Error> {
                    self.to.end()
                }
            }
        )*
    };
}

forward_items! {
    SerializeSeq::serialize_element;
    SerializeTuple::serialize_element;
    SerializeTupleStruct::serialize_field;
    SerializeTupleVariant::serialize_field;
}

macro_rules! forward_fields {
    ($($trait:ident;)*) => {
        $(
            impl<S: ser::$trait> ser::$trait for Checked<'_, S> {
                type Ok = S::Ok;
                type Error = S::Error;

                #[inline]
                fn serialize_field<T: Serialize + ?Sized>(
                    &mut self,
                    key: &'static str,
                    value: &T,
                ) -> Result<(), S::Error> {
                    self.to.serialize_field(key, &Inner { value, rules: self.rules })
                }

                #[inline]
                fn skip_field(&mut self, key: &'static str) -> Result<(), S::Error> {
                    self.to.skip_field(key)
                }

                #[inline]
                fn end(self) -> Result<S::Ok, S::Error> {
                    self.to.end()
                }
            }
        )*
    };
}

forward_fields! {
    SerializeStruct;
    SerializeStructVariant;
}

impl<S: ser::SerializeMap> ser::SerializeMap for Checked<'_, S> {
    type Ok = S::Ok;
    type Error = S::Error;

    #[inline]
    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), S::Error> {
        let rules = self.rules;
        rules.in_key(|| self.to.serialize_key(&Inner { value: key, rules }))
    }

    #[inline]
    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), S::Error> {
        self.to.serialize_value(&Inner { value, rules: self.rules })
    }

    #[inline]
    fn end(self) -> Result<S::Ok, S::Error> {
        self.to.end()
    }
}
