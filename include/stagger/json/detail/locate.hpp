// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Positions in a JSON text, for error messages.

#include <stagger/core/requirements.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace stagger::json::detail {

/// An iterator over a text that counts the bytes that were read.
class Counted {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = char const*;
  using reference = char const&;

  Counted(char const* at, char const** reached) : at_(at), reached_(reached) {}
  reference operator*() const { return *at_; }
  Counted& operator++() {
    ++at_;
    if (*reached_ < at_) *reached_ = at_;
    return *this;
  }
  Counted operator++(int) {
    Counted const before = *this;
    ++*this;
    return before;
  }
  friend bool operator==(Counted const& a, Counted const& b) { return a.at_ == b.at_; }
  friend bool operator!=(Counted const& a, Counted const& b) { return a.at_ != b.at_; }

 private:
  char const* at_;
  char const** reached_;
};

/// Parses a text up to the value of a JSON pointer, or up to the first fault.
class Finder {
 public:
  explicit Finder(std::string target) : target_(std::move(target)) {}

  bool null() { return value(); }
  bool boolean(bool) { return value(); }
  bool number_integer(std::int64_t) { return value(); }
  bool number_unsigned(std::uint64_t) { return value(); }
  bool number_float(double, std::string const&) { return value(); }
  bool string(std::string const&) { return value(); }
  bool binary(nlohmann::json::binary_t const&) { return value(); }
  bool start_object(std::size_t) { return start(false); }
  bool start_array(std::size_t) { return start(true); }
  bool end_object() { return end(); }
  bool end_array() { return end(); }
  bool key(std::string const& name) {
    std::string& step = open_.back().step;
    step.clear();
    for (char const c : name) step += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
    return true;
  }
  bool parse_error(std::size_t position, std::string const& token,
                   nlohmann::json::exception const& error) {
    // The parser reports a number that is too large for a double after the number, and a wrong
    // character at the character.
    fault_ = position > 0 ? position - 1 : 0;
    if (error.id == 406) fault_ = position >= token.size() ? position - token.size() : 0;
    return false;
  }

  [[nodiscard]] std::size_t fault() const noexcept { return fault_; }

 private:
  struct Open {
    bool list;
    std::size_t index;
    std::string step;
  };

  [[nodiscard]] bool here() const {
    std::string now;
    for (Open const& o : open_) {
      now += '/';
      now += o.list ? std::to_string(o.index) : o.step;
    }
    return now == target_;
  }
  bool value() {
    if (here()) return false;
    if (!open_.empty()) ++open_.back().index;
    return true;
  }
  bool start(bool list) {
    if (here()) return false;
    open_.push_back({list, 0, {}});
    return true;
  }
  bool end() {
    open_.pop_back();
    if (!open_.empty()) ++open_.back().index;
    return true;
  }

  std::string target_;
  std::vector<Open> open_{};
  std::size_t fault_ = 0;
};

/// Offset of the first byte at which a text is not valid JSON.
[[nodiscard]] inline std::size_t first_fault(std::string const& text) {
  Finder finder("none");
  nlohmann::json::sax_parse(text, &finder);
  return std::min(finder.fault(), text.size());
}

/// Line of the value at a pointer, from 1.
[[nodiscard]] inline std::size_t line_of(std::string const& text, std::string const& pointer) {
  char const* const begin = text.data();
  char const* reached = begin;
  Finder finder(pointer);
  nlohmann::json::sax_parse(Counted(begin, &reached), Counted(begin + text.size(), &reached),
                            &finder);
  char const* const last = reached == begin ? begin : reached - 1;
  return 1 + static_cast<std::size_t>(std::count(begin, last, '\n'));
}

/// The line, the column and the text at a byte offset, as errors name them.
[[nodiscard]] inline std::string place(std::string const& text, std::size_t at) {
  std::size_t const stop = at == 0 ? std::string::npos : text.rfind('\n', at - 1);
  std::size_t const begin = stop == std::string::npos ? 0 : stop + 1;
  auto const line = std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
  std::string value = text.substr(at, 20);
  value = value.substr(0, value.find('\n'));
  return ", line " + std::to_string(line + 1) + ", column " + std::to_string(at - begin + 1) +
         ": '" + value + "' ";
}

}  // namespace stagger::json::detail
