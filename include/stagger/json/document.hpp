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
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <stagger/core/error.hpp>
#include <stagger/json/detail/locate.hpp>

namespace stagger::json {

using Value = nlohmann::ordered_json;

namespace detail {

/// A value on one line; bytes of a name that are not UTF-8 are replaced.
[[nodiscard]] inline std::string line_of_json(Value const& value) {
  return value.dump(-1, ' ', false, Value::error_handler_t::replace);
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

/// A value in a file, which knows its position. Copies are cheap and keep the file's contents
/// alive.
class Field {
 public:
  /// Reads a whole file.
  /// @param  source  its name in error messages
  /// @throws Error   bad_data naming file, line, column and what stands there
  [[nodiscard]] static Field parse(std::string text, std::string source) {
    auto file = std::make_shared<File>(File{std::move(text), std::move(source), {}});
    try {
      file->root = Value::parse(file->text);
    } catch (Value::exception const&) {
      auto const found = detail::first_fault(file->text);
      raise(Errc::bad_data, file->source, detail::place(file->text, found),
            (found >= file->text.size() ? "is where the file ends too early" : "is not JSON here"));
    }
    Value const* const root = &file->root;
    return Field(std::move(file), root, "", "");
  }

  [[nodiscard]] Value const& value() const noexcept { return *value_; }
  [[nodiscard]] std::string const& source() const noexcept { return file_->source; }

  /// Throws an error about this field.
  /// @param  why  the end of the sentence: "; give ..."
  [[noreturn, gnu::cold]] void refuse(std::string const& why) const {
    std::string shown = detail::line_of_json(*value_);
    if (shown.size() > 40) shown = shown.substr(0, 37) + "...";
    raise(Errc::bad_data, where(), ": ", name_.empty() ? "the file" : name_, " is ", shown, why);
  }

  /// File and line, as errors begin.
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
    std::string escaped;
    for (char const c : std::string_view(key))
      escaped += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
    return Field(file_, &*found, pointer_ + "/" + escaped,
                 name_.empty() ? std::string(key) : name_ + "." + key);
  }

  /// Elements of a list. @throws Error bad_data if this is not a list
  [[nodiscard]] std::vector<Field> elements() const {
    if (!value_->is_array()) refuse("; give a list [ ... ]");
    std::vector<Field> all;
    for (std::size_t i = 0; i < value_->size(); ++i)
      all.push_back(Field(file_, &(*value_)[i], text(pointer_, "/", i), text(name_, "[", i, "]")));
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

  /// @throws Error bad_data if this is not a finite number, or negative
  [[nodiscard]] double number() const {
    if (!value_->is_number() || !(value_->get<double>() >= 0) || !(value_->get<double>() <= 1e300))
      refuse("; give a finite number that is not negative");
    return value_->get<double>();
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

  Field(std::shared_ptr<File const> file, Value const* value, std::string pointer, std::string name)
      : file_(std::move(file)),
        value_(value),
        pointer_(std::move(pointer)),
        name_(std::move(name)) {}

  std::shared_ptr<File const> file_;
  Value const* value_;
  std::string pointer_;  // as RFC 6901
  std::string name_;     // its name in error messages: layers[3].forward_s
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
