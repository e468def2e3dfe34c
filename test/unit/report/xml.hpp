// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A strict reader of the XML that pictures are made of: elements, attributes, text, the
/// five named entities and numeric ones.

#include <cctype>
#include <cstddef>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace xml {

struct Element {
  std::string name;
  std::map<std::string, std::string> attributes;
  std::vector<Element> children;
  std::string text;  ///< of this element alone, children left out

  [[nodiscard]] std::string get(std::string const& key) const {
    auto const found = attributes.find(key);
    return found == attributes.end() ? "" : found->second;
  }

  /// Calls f with this element and all below it, parents first.
  template <class F> void each(F&& f) const {
    f(*this);
    for (Element const& child : children) child.each(f);
  }
};

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  Element document() {
    Element root = element();
    while (std::isspace(static_cast<unsigned char>(peek())) != 0) ++at_;
    if (at_ != text_.size()) fail("text after the root element");
    return root;
  }

 private:
  [[noreturn]] void fail(std::string const& what) const {
    throw std::runtime_error("XML, byte " + std::to_string(at_) + ": " + what);
  }
  [[nodiscard]] char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  [[nodiscard]] bool starts(std::string_view with) const {
    return text_.substr(at_, with.size()) == with;
  }
  void expect(std::string_view what) {
    if (!starts(what)) fail("expected " + std::string(what));
    at_ += what.size();
  }
  void blank() {
    while (std::isspace(static_cast<unsigned char>(peek())) != 0) ++at_;
  }

  std::string word() {
    std::size_t const begin = at_;
    while (std::isalnum(static_cast<unsigned char>(peek())) != 0 || peek() == '-' || peek() == ':')
      ++at_;
    if (at_ == begin) fail("expected a name");
    return std::string(text_.substr(begin, at_ - begin));
  }

  void character(std::string& out) {
    char const c = peek();
    if (c == '<' || c == '\0' || c == '>') fail("a bare character");
    if (c != '&') {
      if (static_cast<unsigned char>(c) < 0x20 && c != '\n') fail("a control character");
      out += c;
      ++at_;
      return;
    }
    static std::map<std::string, std::string> const entities{{"amp", "&"},  {"lt", "<"},
                                                             {"gt", ">"},   {"quot", "\""},
                                                             {"apos", "'"}, {"#183", "\xC2\xB7"}};
    std::size_t const end = text_.find(';', at_);
    auto const found = entities.find(std::string(text_.substr(at_ + 1, end - at_ - 1)));
    if (found == entities.end()) fail("an unknown entity");
    out += found->second;
    at_ = end + 1;
  }

  Element element() {
    expect("<");
    Element e;
    e.name = word();
    for (blank(); peek() != '>' && peek() != '/'; blank()) {
      std::string const key = word();
      expect("=\"");
      std::string value;
      while (peek() != '"') character(value);
      ++at_;
      if (!e.attributes.emplace(key, value).second) fail("attribute " + key + " twice");
    }
    if (peek() == '/') {
      expect("/>");
      return e;
    }
    expect(">");
    while (!starts("</")) {
      if (peek() == '<') {
        e.children.push_back(element());
      } else {
        character(e.text);
      }
    }
    expect("</" + e.name + ">");
    return e;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

inline Element parse(std::string_view text) { return Reader(text).document(); }

}  // namespace xml
