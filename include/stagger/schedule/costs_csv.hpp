// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Reads costs of stages from CSV: a header and a line for each stage.

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/core/from_chars.hpp>
#include <stagger/schedule/costs.hpp>

namespace stagger::schedule {

/// Reads `stage,forward_s,backward_input_s,backward_weight_s,transfer_s`, then one line for each
/// stage from 0 on, in seconds. Blanks around a field are ignored, lines end in LF or CRLF.
/// @param source  what errors call the text, a file name for instance
/// @throws Error bad_data, naming line, column (in bytes, from 1) and value
[[nodiscard]] inline Costs read_costs_csv(std::string_view text,
                                          std::string_view source = "stage costs") {
  constexpr std::array<std::string_view, 5> header{"stage", "forward_s", "backward_input_s",
                                                   "backward_weight_s", "transfer_s"};
  Costs costs;
  int line = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    std::size_t end = text.find('\n', begin);
    if (end == std::string_view::npos) end = text.size();
    std::size_t const next = end + 1;
    if (end > begin && text[end - 1] == '\r') --end;
    ++line;
    std::size_t from = begin;
    std::array<double, 5> numbers{};
    for (std::size_t field = 0; field < header.size(); ++field) {
      std::size_t comma =
          from <= end ? text.substr(0, end).find(',', from) : std::string_view::npos;
      if (comma == std::string_view::npos) comma = end;
      std::size_t a = from < end ? from : end, b = comma;
      while (a < b && (text[a] == ' ' || text[a] == '\t')) ++a;
      while (a < b && (text[b - 1] == ' ' || text[b - 1] == '\t')) --b;
      std::string_view const value = text.substr(a, b - a);
      auto const refuse = [&](std::string const& why) {
        raise(Errc::bad_data, source, ", line ", line, ", column ", a - begin + 1, ": '",
              value.substr(0, 60), "' ", why);
      };
      if ((comma < end) != (field + 1 < header.size())) {
        refuse("is field " + std::to_string(field + 1) + " of a line that must have 5");
      }
      if (line == 1) {
        if (value != header[field])
          refuse("is not the header '" + std::string(header[field]) + "'");
      } else {
        auto const [stop, error] =
            from_chars(value.data(), value.data() + value.size(), numbers[field]);
        if (error != std::errc{} || stop != value.data() + value.size() ||
            !detail::is_cost(numbers[field])) {
          refuse("is not a finite number that is not negative");
        }
        if (field == 0 && numbers[0] != static_cast<double>(costs.stages.size())) {
          refuse("is not the next stage, " + std::to_string(costs.stages.size()));
        }
      }
      from = comma + 1;
    }
    if (line > 1) {
      costs.stages.push_back({.forward_s = numbers[1],
                              .backward_input_s = numbers[2],
                              .backward_weight_s = numbers[3],
                              .transfer_s = numbers[4]});
    }
    begin = next;
  }
  if (costs.stages.empty())
    raise(Errc::bad_data, source, " holds no stage; give a header and a line for each");
  return costs;
}

}  // namespace stagger::schedule
