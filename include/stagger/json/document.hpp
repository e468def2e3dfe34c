// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   JSON files whose errors name file, line, field and value.

#if !__has_include(<nlohmann/json.hpp>)
#error \
    "stagger/json/ needs nlohmann/json.hpp: link stagger::json, or add the library's folder with -I"
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <stagger/core/byte_order_mark.hpp>
#include <stagger/core/error.hpp>

namespace stagger::json {

using Value = nlohmann::ordered_json;

namespace detail {

/// How many bytes of a text the parser has read.
[[nodiscard]] inline std::size_t bytes_read(std::istringstream& text) {
  return static_cast<std::size_t>(text.rdbuf()->pubseekoff(0, std::ios::cur, std::ios::in));
}

/// Line of the value at a pointer, from 1.
[[nodiscard]] inline std::size_t line_of(std::string const& text,
                                         Value::json_pointer const& wanted) {
  using Event = Value::parse_event_t;
  std::istringstream in(text);
  Value::json_pointer here;  // of the value that is being read
  std::vector<int> next;     // [open lists and objects] number of the next element; -1: an object
  std::size_t end = 0;       // bytes that were read when the wanted value was found
  auto const look = [&](int, Event event, Value const& read) {
    bool const begins = event == Event::object_start || event == Event::array_start;
    if (event == Event::key) {
      here.push_back(read.get<std::string>());
      return true;
    }
    if (event == Event::object_end || event == Event::array_end) {
      next.pop_back();
    } else {
      if (!next.empty() && next.back() >= 0) here.push_back(std::to_string(next.back()++));
      if (end == 0 && here == wanted) end = bytes_read(in);
      if (begins) next.push_back(event == Event::array_start ? 0 : -1);
    }
    if (!begins && !here.empty()) here.pop_back();
    return true;
  };
  [[maybe_unused]] Value const whole = Value::parse(in, look);
  auto const last = text.begin() + static_cast<std::ptrdiff_t>(end == 0 ? 0 : end - 1);
  return 1 + static_cast<std::size_t>(std::count(text.begin(), last, '\n'));
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

/// Lists and objects within each other, at most: code that walks through them calls itself for each.
inline constexpr int most_nested = 200;

/// Refuses a text whose lists and objects lie deeper within each other.
inline void require_shallow(std::string const& text, std::string const& source) {
  int open = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    char const c = text[i];
    if (c == '"') quoted = !quoted;
    if (quoted && c == '\\') ++i;  // a quote behind it does not end the string
    if (quoted) continue;
    if (c == ']' || c == '}') --open;
    if ((c == '[' || c == '{') && ++open > most_nested)
      raise(Errc::bad_data, source, place(text, i), "is more than ", most_nested,
            " lists and objects deep; nest fewer within each other");
  }
}

/// A value on one line; bytes of a name that are not UTF-8 are replaced.
[[nodiscard]] inline std::string line_of_json(Value const& value) {
  return value.dump(-1, ' ', false, Value::error_handler_t::replace);
}

/// A value as errors show it: in about 40 bytes, without a walk through large lists and objects.
[[nodiscard]] inline std::string shown(Value const& value) {
  bool const nested = std::any_of(value.begin(), value.end(), [&](Value const& element) {
    return value.is_structured() && element.is_structured();
  });
  if (value.is_structured() && (nested || value.size() > 8))
    return text(value.is_array() ? "a list of " : "an object of ", counted(value.size(), "value"));
  std::string const line = line_of_json(value);
  return line.size() > 40 ? line.substr(0, 37) + "..." : line;
}

/// An object with one key on each line, and for the list of key `split` one element on each line.
[[nodiscard]] inline std::string lines_of_json(Value const& whole, std::string_view split) {
  std::string out = "{";
  for (auto const& [key, value] : whole.items()) {
    out += text(out.size() == 1 ? "\n  \"" : ",\n  \"", key, "\": ");
    if (key != split || value.empty()) {
      out += line_of_json(value);
      continue;
    }
    for (std::size_t i = 0; i < value.size(); ++i)
      out += text(i == 0 ? "[\n    " : ",\n    ", line_of_json(value[i]));
    out += "\n  ]";
  }
  return out + "\n}\n";
}

}  // namespace detail

/// A value in a file, which knows where it stands. Copies are cheap and keep the file's contents
/// alive.
class Field {
 public:
  /// Reads a whole file. A byte order mark at its front is skipped.
  /// @param  source  its name in error messages
  /// @throws Error   bad_data naming file, line, column and what stands there, also for lists and
  ///                 objects that lie too deep within each other
  [[nodiscard]] static Field parse(std::string text, std::string source) {
    text.erase(0, text.size() - stagger::detail::without_byte_order_mark(text).size());
    auto file = std::make_shared<File>(File{std::move(text), std::move(source), {}});
    detail::require_shallow(file->text, file->source);
    std::istringstream in(file->text);
    auto const refuse_text = [&](std::size_t at) {
      at = std::min(at, file->text.size());
      raise(Errc::bad_data, file->source, detail::place(file->text, at),
            (at == file->text.size() ? "is where the file ends too early" : "is not JSON here"));
    };
    try {
      file->root = Value::parse(in);
    } catch (Value::parse_error const& error) {
      refuse_text(error.byte == 0 ? 0 : error.byte - 1);
    } catch (Value::out_of_range const&) {
      // A number is too large for a double; what follows it has been read, too.
      refuse_text(file->text.find_last_not_of("+-.0123456789Ee", detail::bytes_read(in) - 2) + 1);
    }
    Value const* const root = &file->root;
    return Field(std::move(file), root, Value::json_pointer(), "");
  }

  [[nodiscard]] Value const& value() const noexcept { return *value_; }
  [[nodiscard]] std::string const& source() const noexcept { return file_->source; }

  /// Throws an error about this field.
  /// @param  why  the end of the sentence: "; give ..."
  [[noreturn, gnu::cold]] void refuse(std::string const& why) const {
    raise(Errc::bad_data, where(), ": ", name_.empty() ? "the file" : name_, " is ",
          detail::shown(*value_), why);
  }

  /// File and line, with which error messages begin.
  [[nodiscard]] std::string where() const {
    return text(file_->source, ", line ", detail::line_of(file_->text, pointer_));
  }

  [[nodiscard]] bool has(char const* key) const {
    return value_->is_object() && value_->contains(key);
  }

  /// A field of an object. @throws Error bad_data if it is missing, or this is not an object
  [[nodiscard]] Field at(char const* key) const {
    if (!value_->is_object()) refuse("; give an object { ... }");
    auto const found = value_->find(key);
    if (found == value_->end())
      raise(Errc::bad_data, where(), ": ", name_.empty() ? "the file" : name_, " has no '", key,
            "'; add it");
    return Field(file_, &*found, pointer_ / key,
                 name_.empty() ? std::string(key) : name_ + "." + key);
  }

  /// Elements of a list. @throws Error bad_data if this is not a list
  [[nodiscard]] std::vector<Field> elements() const {
    if (!value_->is_array()) refuse("; give a list [ ... ]");
    std::vector<Field> all;
    for (std::size_t i = 0; i < value_->size(); ++i)
      all.push_back(Field(file_, &(*value_)[i], pointer_ / i, text(name_, "[", i, "]")));
    return all;
  }

  /// Members of an object, in the file's order. @throws Error bad_data if this is not an object
  [[nodiscard]] std::vector<std::pair<std::string, Field>> members() const {
    if (!value_->is_object()) refuse("; give an object { ... }");
    std::vector<std::pair<std::string, Field>> all;
    for (auto const& [key, unused] : value_->items()) all.emplace_back(key, at(key.c_str()));
    return all;
  }

  /// @throws Error bad_data if this is not a string
  [[nodiscard]] std::string string() const {
    if (!value_->is_string()) refuse("; give a text in quotes");
    return value_->get<std::string>();
  }

  /// The index of this text among the allowed ones.
  /// @throws Error bad_data if it is none of them
  template <class Names> [[nodiscard]] std::size_t one_of(Names const& names) const {
    std::string const word = string();
    std::string all;
    for (std::size_t i = 0; i < std::size(names); ++i) {
      if (word == names[i]) return i;
      all += text(i == 0 ? "\"" : "\", \"", names[i]);
    }
    refuse(text("; give one of ", all, "\""));
  }

  /// @throws Error bad_data if this is not a finite number, or negative
  [[nodiscard]] double number() const {
    if (!value_->is_number() || !(value_->get<double>() >= 0) || !(value_->get<double>() <= 1e300))
      refuse("; give a finite number that is not negative");
    return value_->get<double>();
  }

  /// Writes a field of an object to `to`, unless it is missing. @throws Error as number()
  void take_number(char const* key, double& to) const {
    if (has(key)) to = at(key).number();
  }

  /// @throws Error bad_data if this is not a number above 0
  [[nodiscard]] double positive() const {
    if (number() > 0) return number();
    refuse("; give a finite number above 0");
  }

  /// @throws Error bad_data if this is not a whole number within the limits
  [[nodiscard]] int integer(int least, int most) const {
    bool const fits = value_->is_number() && value_->get<double>() >= least &&
                      value_->get<double>() <= most &&
                      std::floor(value_->get<double>()) == value_->get<double>();
    if (!fits) refuse(text("; give a whole number from ", least, " to ", most));
    return static_cast<int>(value_->get<double>());
  }

  /// A size; fractions, which averages have, are rounded.
  /// @throws Error bad_data if this is not a number of bytes up to 9e15
  [[nodiscard]] std::uint64_t bytes() const {
    if (number() > 9e15) refuse("; give less than 9e15 bytes");
    return static_cast<std::uint64_t>(std::llround(number()));
  }

 private:
  struct File {
    std::string text, source;
    Value root;
  };

  Field(std::shared_ptr<File const> file, Value const* value, Value::json_pointer pointer,
        std::string name)
      : file_(std::move(file)),
        value_(value),
        pointer_(std::move(pointer)),
        name_(std::move(name)) {}

  std::shared_ptr<File const> file_;
  Value const* value_;
  Value::json_pointer pointer_;
  std::string name_;  // its name in error messages: layers[3].forward_s
};

/// The text of a file.
/// @throws Error  io naming the file
[[nodiscard]] inline std::string read_file(std::string const& path) {
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> const file(std::fopen(path.c_str(), "rb"),
                                                             &std::fclose);
  if (!file) raise(Errc::io, "cannot open '", path, "'; name a file that can be read");
  std::string all;
  char piece[1 << 14];
  for (std::size_t n = 0; (n = std::fread(piece, 1, sizeof piece, file.get())) > 0;)
    all.append(piece, n);
  if (std::ferror(file.get()) != 0)
    raise(Errc::io, "cannot read '", path, "'; name a file that can be read");
  return all;
}

}  // namespace stagger::json
