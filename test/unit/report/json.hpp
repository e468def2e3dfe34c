// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   A strict reader of JSON for the tests: refuses what the standard refuses.

#include <cstddef>
#include <cstdlib>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace json {

struct Value {
  enum class Type { null, boolean, number, string, array, object } type = Type::null;
  bool boolean = false;
  double number = 0;
  std::string text;  ///< of a string; of a number, as it was written
  std::vector<Value> items;
  std::map<std::string, Value> members;

  [[nodiscard]] bool has(std::string const& key) const { return members.count(key) == 1; }
  [[nodiscard]] Value const& at(std::string const& key) const { return members.at(key); }
};

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  Value document() {
    Value value = read();
    blank();
    if (at_ != text_.size()) fail("text after the end");
    return value;
  }

 private:
  [[noreturn]] void fail(std::string const& what) const {
    throw std::runtime_error("JSON, byte " + std::to_string(at_) + ": " + what);
  }
  [[nodiscard]] char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void blank() {
    while (peek() == ' ' || peek() == '\n' || peek() == '\r' || peek() == '\t') ++at_;
  }
  void expect(char c) {
    if (peek() != c) fail(std::string("expected ") + c);
    ++at_;
  }
  bool word(std::string_view expected) {
    if (text_.substr(at_, expected.size()) != expected) return false;
    at_ += expected.size();
    return true;
  }

  Value read() {
    blank();
    Value value;
    char const c = peek();
    if (c == '{') {
      value.type = Value::Type::object;
      ++at_;
      for (blank(); peek() != '}'; blank()) {
        if (!value.members.empty()) expect(',');
        blank();
        std::string const key = string();
        blank();
        expect(':');
        if (!value.members.emplace(key, read()).second) fail("key " + key + " twice");
      }
      ++at_;
    } else if (c == '[') {
      value.type = Value::Type::array;
      ++at_;
      for (blank(); peek() != ']'; blank()) {
        if (!value.items.empty()) expect(',');
        value.items.push_back(read());
      }
      ++at_;
    } else if (c == '"') {
      value.type = Value::Type::string;
      value.text = string();
    } else if (word("true")) {
      value.type = Value::Type::boolean;
      value.boolean = true;
    } else if (word("false")) {
      value.type = Value::Type::boolean;
    } else if (!word("null")) {
      value.type = Value::Type::number;
      number(value);
    }
    return value;
  }

  void digits() {
    if (peek() < '0' || peek() > '9') fail("expected a digit");
    while (peek() >= '0' && peek() <= '9') ++at_;
  }

  void number(Value& value) {
    std::size_t const begin = at_;
    if (peek() == '-') ++at_;
    if (peek() == '0') {
      ++at_;
    } else {
      digits();
    }
    if (peek() == '.') ++at_, digits();
    if (peek() == 'e' || peek() == 'E') {
      ++at_;
      if (peek() == '+' || peek() == '-') ++at_;
      digits();
    }
    value.text = text_.substr(begin, at_ - begin);
    value.number = std::strtod(value.text.c_str(), nullptr);
  }

  std::string string() {
    expect('"');
    std::string out;
    while (peek() != '"') {
      if (at_ >= text_.size()) fail("open string");
      auto const c = static_cast<unsigned char>(text_[at_++]);
      if (c < 0x20) fail("control character in a string");
      if (c != '\\') {
        out += static_cast<char>(c);
        continue;
      }
      char const escape = peek();
      ++at_;
      constexpr std::string_view from = "\"\\/bfnrt";
      constexpr std::string_view to = "\"\\/\b\f\n\r\t";
      if (std::size_t const i = from.find(escape); i != std::string_view::npos) {
        out += to[i];
      } else if (escape == 'u') {
        std::string const hex(text_.substr(at_, 4));
        if (hex.size() < 4 ||
            hex.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) {
          fail("bad \\u");
        }
        unsigned long const code = std::strtoul(hex.c_str(), nullptr, 16);
        if (code > 0x7F) fail("only ASCII is expected behind \\u");
        out += static_cast<char>(code);
        at_ += 4;
      } else {
        fail("bad escape");
      }
    }
    ++at_;
    return out;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

inline Value parse(std::string_view text) { return Reader(text).document(); }

}  // namespace json
