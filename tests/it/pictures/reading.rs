//! Readers of pictures that share no code with the writers.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

/// Returns a text as a picture should show it.
pub fn drawn(text: &str) -> String {
    let mut drawn = String::new();
    for c in text.chars() {
        let turns =
            "\u{61c}\u{200e}\u{200f}\u{202a}\u{202b}\u{202c}\u{202d}\u{202e}\u{2066}\u{2067}\u{2068}\u{2069}";
        let breaks = "\u{2028}\u{2029}\u{feff}\u{fff9}\u{fffa}\u{fffb}\u{fffe}\u{ffff}";
        if c.is_control() || turns.contains(c) || breaks.contains(c) {
            write!(drawn, "\\u{{{:x}}}", c as u32).unwrap();
        } else {
            drawn.push(c);
        }
    }
    drawn
}

/// The labels of the nodes in a DOT text, as a person reads them, and the edges between their
/// indexes.
#[derive(Debug, Default)]
pub struct Dot {
    pub labels: Vec<String>,
    pub edges: Vec<(usize, usize)>,
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Word(String),
    Quoted(String),
    Sign(char),
    Arrow,
}

/// Parses the used part of the language: `digraph`, statements of nodes and edges, and attributes.
pub fn dot(text: &str) -> Dot {
    let tokens = tokens(text);
    assert_eq!(tokens[0], Token::Word("digraph".to_owned()));
    assert!(matches!(tokens[1], Token::Quoted(_)), "{:?}", tokens[1]);
    assert_eq!(tokens[2], Token::Sign('{'));
    assert_eq!(tokens[tokens.len() - 1], Token::Sign('}'));
    let mut dot = Dot::default();
    let body = &tokens[3..tokens.len() - 1];
    for statement in body.split(|token| *token == Token::Sign(';')).filter(|statement| !statement.is_empty())
    {
        let Token::Word(first) = &statement[0] else { panic!("{statement:?}") };
        let label = statement.windows(3).find_map(|three| match three {
            [Token::Word(name), Token::Sign('='), Token::Quoted(value)] if name == "label" => Some(value),
            _ => None,
        });
        match (first.as_str(), &statement[1]) {
            ("graph" | "node" | "edge", _) => {}
            (from, Token::Arrow) => {
                let Token::Word(to) = &statement[2] else { panic!("{statement:?}") };
                dot.edges.push((place(from), place(to)));
            }
            (node, _) => {
                assert_eq!(place(node), dot.labels.len());
                dot.labels.push(shown_label(label.unwrap()));
            }
        }
    }
    dot
}

fn place(id: &str) -> usize {
    id.strip_prefix('n').unwrap().parse().unwrap()
}

fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            c if c.is_whitespace() => {}
            '"' => {
                // A quoted string has one escape, the quote. Before any other character, a
                // backslash is literal.
                let mut quoted = String::new();
                loop {
                    match chars.next().expect("a quoted string ends") {
                        '"' => break,
                        '\\' if chars.peek() == Some(&'"') => quoted.extend(chars.next()),
                        '\\' => {
                            quoted.push('\\');
                            quoted.extend(chars.next());
                        }
                        c => quoted.push(c),
                    }
                }
                tokens.push(Token::Quoted(quoted));
            }
            '-' if chars.peek() == Some(&'>') => {
                chars.next();
                tokens.push(Token::Arrow);
            }
            c if c.is_ascii_alphanumeric() || c == '_' => {
                let mut word = String::from(c);
                while let Some(c) = chars.next_if(|c| c.is_ascii_alphanumeric() || *c == '_') {
                    word.push(c);
                }
                tokens.push(Token::Word(word));
            }
            '{' | '}' | '[' | ']' | '=' | ',' | ';' => tokens.push(Token::Sign(c)),
            c => panic!(
                "{c:?} stands outside a quoted string, before {:?}",
                chars.take(40).collect::<String>()
            ),
        }
    }
    tokens
}

/// Returns the label as Graphviz draws it, with escapes and entities replaced.
fn shown_label(label: &str) -> String {
    let mut shown = String::new();
    let mut chars = label.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next().expect("an escape has a character") {
                'n' => shown.push('\n'),
                '\\' => shown.push('\\'),
                other => panic!("the escape \\{other} in {label:?}"),
            },
            '&' => {
                let entity: String = chars.by_ref().take_while(|c| *c != ';').collect();
                assert_eq!(entity, "amp", "in {label:?}");
                shown.push('&');
            }
            c => shown.push(c),
        }
    }
    shown
}

pub fn by_graphviz(dot: &str) -> String {
    let started = Command::new("dot").arg("-Tsvg").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = started.expect("`dot` does not start: install Graphviz (Debian: `graphviz`)");
    let mut stdin = child.stdin.take().unwrap();
    let text = dot.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[derive(Debug)]
pub struct Xml {
    pub titles: Vec<String>,
    pub elements: Vec<String>,
    pub height: f64,
}

/// Reads an SVG document with an independent parser.
pub fn xml(text: &str) -> Xml {
    let options = roxmltree::ParsingOptions { nodes_limit: u32::MAX, ..roxmltree::ParsingOptions::default() };
    let document = roxmltree::Document::parse_with_options(text, options).unwrap_or_else(|error| {
        panic!("{error}: {}", text.lines().nth(error.pos().row as usize - 1).unwrap_or_default())
    });
    let root = document.root_element();
    assert_eq!(root.tag_name().namespace(), Some("http://www.w3.org/2000/svg"));
    let elements = || root.descendants().filter(roxmltree::Node::is_element);
    assert!(
        elements().all(|element| element.attributes().all(|attribute| !attribute.name().starts_with("on")))
    );
    let titles = elements().filter(|element| element.has_tag_name(("http://www.w3.org/2000/svg", "title")));
    Xml {
        titles: titles.map(|title| title.text().unwrap_or_default().to_owned()).collect(),
        elements: elements().map(|element| element.tag_name().name().to_owned()).collect(),
        height: root.attribute("height").unwrap().parse().unwrap(),
    }
}
