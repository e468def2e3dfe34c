// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Text generation.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <stagger/engine/step.hpp>

#include "model/embedding.hpp"
#include "model/shared.hpp"

namespace gpt {

/// Text that is safe to print on a terminal: everything but printable ASCII, line breaks and
/// well-formed UTF-8 is replaced by '?'.
[[nodiscard]] inline std::string printable(std::string const& bytes) {
  std::string text;
  for (std::size_t i = 0; i < bytes.size();) {
    auto const byte = static_cast<unsigned char>(bytes[i]);
    std::size_t const length = byte < 0x80                   ? 1
                               : byte >= 0xc2 && byte < 0xe0 ? 2
                               : byte >= 0xe1 && byte < 0xf0 ? 3
                                                             : 0;
    bool good = length != 0 && i + length <= bytes.size();
    if (length == 1) good = byte == '\n' || (byte >= 0x20 && byte < 0x7f);
    for (std::size_t j = 1; good && j < length; ++j)
      good = (static_cast<unsigned char>(bytes[i + j]) & 0xc0U) == 0x80;
    text += good ? bytes.substr(i, length) : "?";
    i += good ? length : 1;
  }
  return text;
}

/// Generates text after a prompt, one byte at a time. Each prediction sees as many of the preceding
/// bytes as the context holds.
/// @param logits       (Tokens const& [rows][seen]) -> float const* [rows][seen][256]: forward only
/// @param rows         copies of the text in a prediction: each replica of a stage needs a row
/// @param temperature  below 1 makes likely bytes more likely
template <class Logits>
[[nodiscard]] std::string sample(Logits logits, std::size_t rows, std::string const& prompt,
                                 std::size_t length, std::size_t context, std::uint64_t seed,
                                 double temperature = 0.7) {
  Random random = stream(seed, 1);
  std::string text = prompt;
  Tokens window;
  while (text.size() < prompt.size() + length) {
    std::size_t const seen = std::min(context, text.size());
    window.resize({rows, seen});
    for (std::size_t r = 0; r < rows; ++r)
      std::copy(text.end() - static_cast<std::ptrdiff_t>(seen), text.end(),
                window.begin() + r * seen);
    auto const* const last = logits(window) + (seen - 1) * count(classes);
    auto const largest = static_cast<double>(*std::max_element(last, last + classes));
    std::vector<double> share(count(classes));
    double sum = 0;
    for (std::size_t c = 0; c < share.size(); ++c)
      sum += share[c] = std::exp((static_cast<double>(last[c]) - largest) / temperature);
    double left = random.uniform() * sum;
    std::size_t next = 0;
    while (next + 1 < share.size() && (left -= share[next]) >= 0) ++next;
    text += static_cast<char>(next);
  }
  return printable(text);
}

}  // namespace gpt
