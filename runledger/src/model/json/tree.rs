//! A JSON text as a tree. Numbers keep their text, which `serde_json::Value` would round.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::de::IgnoredAny;

/// A node. If a key occurs twice, the last value counts, as in `jsonb`.
#[derive(Debug, PartialEq)]
pub(super) enum Tree<'a> {
    /// `null`, `true`, `false` or a number, as written.
    Literal(&'a str),
    /// Borrowed if the text has no escapes.
    Text(Cow<'a, str>),
    Array(Vec<Tree<'a>>),
    Object(BTreeMap<Cow<'a, str>, Tree<'a>>),
}

/// The reason why there is no tree.
#[derive(Debug)]
pub(super) enum Fault {
    Malformed(String),
    TooDeep,
}

impl<'a> Tree<'a> {
    /// Parses `text` with at most `max_depth` nested arrays and objects.
    pub(super) fn parse(text: &'a str, max_depth: usize) -> Result<Self, Fault> {
        Ok(Self::parse_with_hidden(text, max_depth)?.0)
    }

    /// Also returns the values that a later value of the same key replaced. Readers may ignore
    /// these values, but must still parse them.
    pub(super) fn parse_with_hidden(text: &'a str, max_depth: usize) -> Result<(Self, Vec<Self>), Fault> {
        // This checks the grammar without recursion. The code below only finds the borders.
        serde_json::from_str::<IgnoredAny>(text).map_err(|error| Fault::Malformed(error.to_string()))?;
        let mut cursor = Cursor { text, at: 0, hidden: Vec::new() };
        let tree = cursor.value(max_depth)?;
        Ok((tree, cursor.hidden))
    }
}

struct Cursor<'a> {
    text: &'a str,
    at: usize,
    hidden: Vec<Tree<'a>>,
}

impl<'a> Cursor<'a> {
    fn value(&mut self, room: usize) -> Result<Tree<'a>, Fault> {
        match self.peek() {
            b'{' => self.object(room.checked_sub(1).ok_or(Fault::TooDeep)?),
            b'[' => self.array(room.checked_sub(1).ok_or(Fault::TooDeep)?),
            b'"' => self.string().map(Tree::Text),
            _ => self.literal().map(Tree::Literal),
        }
    }

    fn object(&mut self, room: usize) -> Result<Tree<'a>, Fault> {
        let mut fields = BTreeMap::new();
        self.at += 1;
        while self.peek() == b'"' {
            let key = self.string()?;
            self.skip(b':');
            let value = self.value(room)?;
            self.hidden.extend(fields.insert(key, value));
            self.skip(b',');
        }
        self.skip(b'}');
        Ok(Tree::Object(fields))
    }

    fn array(&mut self, room: usize) -> Result<Tree<'a>, Fault> {
        let mut items = Vec::new();
        self.at += 1;
        while !matches!(self.peek(), b']' | END) {
            items.push(self.value(room)?);
            self.skip(b',');
        }
        self.skip(b']');
        Ok(Tree::Array(items))
    }

    fn string(&mut self) -> Result<Cow<'a, str>, Fault> {
        let start = self.at;
        let mut is_escaped = false;
        self.at += 1;
        loop {
            match self.byte() {
                b'"' => break,
                b'\\' => {
                    is_escaped = true;
                    self.at += 2;
                }
                END if self.at >= self.text.len() => return Err(unterminated()),
                _ => self.at += 1,
            }
        }
        self.at += 1;
        let written = self.text.get(start..self.at).ok_or_else(unterminated)?;
        if is_escaped {
            return serde_json::from_str(written)
                .map(Cow::Owned)
                .map_err(|error| Fault::Malformed(error.to_string()));
        }
        Ok(Cow::Borrowed(written.trim_matches('"')))
    }

    fn literal(&mut self) -> Result<&'a str, Fault> {
        let rest = self.text.get(self.at..).ok_or_else(unterminated)?;
        let length = rest.find([',', ']', '}', ' ', '\t', '\n', '\r']).unwrap_or(rest.len());
        self.at += length;
        match rest.get(..length) {
            None | Some("") => Err(unterminated()),
            Some(literal) => Ok(literal),
        }
    }

    /// The next byte that is not white space.
    fn peek(&mut self) -> u8 {
        while matches!(self.byte(), b' ' | b'\t' | b'\n' | b'\r') {
            self.at += 1;
        }
        self.byte()
    }

    fn skip(&mut self, punctuation: u8) {
        if self.peek() == punctuation {
            self.at += 1;
        }
    }

    fn byte(&self) -> u8 {
        self.text.as_bytes().get(self.at).copied().unwrap_or(END)
    }
}

/// Marks the end of the text. JSON has no NUL outside escapes.
const END: u8 = 0;

fn unterminated() -> Fault {
    Fault::Malformed("the text ends inside a value".to_owned())
}
