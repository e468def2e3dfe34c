// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Tables as PyTorch's CSV, compute-only and with messages, and stage costs as CSV. Text
///         that is not in the grammar is an error that names line, column and value.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include <stagger/core/byte_order_mark.hpp>
#include <stagger/core/error.hpp>
#include <stagger/core/from_chars.hpp>
#include <stagger/schedule/costs.hpp>
#include <stagger/schedule/fault.hpp>
#include <stagger/schedule/table.hpp>

namespace stagger::schedule {

/// Which letters a table is written in.
enum class Letters : std::uint8_t {
  torch,      ///< of PyTorch from 2.6 on, and of this library: B is a whole backward, I and W are
              ///< its halves
  torch_2_5,  ///< of PyTorch up to 2.5: B is a whole backward where the table has no W for it, and
              ///< else I; BW is a whole one in any case
};

/// A cell that gathers the sharded parameters of a stage (UNSHARD) or releases them (RESHARD).
/// Tables hold none, since nothing here shards parameters; a caller that wants to write them again
/// keeps them with the table.
struct ShardCell {
  int rank = 0;
  int stage = 0;
  bool gathers = true;  ///< UNSHARD, else RESHARD
  bool at_end = true;   ///< of the row; else it stands right before `before`
  Action before{};
  friend constexpr bool operator==(ShardCell const&, ShardCell const&) = default;
};

namespace detail {

/// Removes the text before the first separator, and the separator, from `rest`, and returns that
/// text.
inline std::string_view take_until(std::string_view& rest, char separator) noexcept {
  std::size_t const end = rest.find(separator);
  std::string_view const field = rest.substr(0, end);
  rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  return field;
}

/// The next line, without LF or CRLF.
inline std::string_view take_line(std::string_view& rest) noexcept {
  std::string_view line = take_until(rest, '\n');
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

/// The text without what editors add: a byte order mark at its front, blank lines at its end.
inline std::string_view without_marks(std::string_view text) noexcept {
  text = stagger::detail::without_byte_order_mark(text);
  return text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
}

/// The text without blanks at both ends; of blanks alone, an empty view at their end.
inline std::string_view trimmed(std::string_view field) noexcept {
  auto const blank = [](char c) { return c == ' ' || c == '\t'; };
  while (!field.empty() && blank(field.front())) field.remove_prefix(1);
  while (!field.empty() && blank(field.back())) field.remove_suffix(1);
  return field;
}

/// Reads the cells of one text. Lines and columns count from 1, columns in bytes.
class TableReader {
 public:
  /// @param shards, columns  take the cells that are no actions, and where each action stands; or
  ///                         null
  TableReader(std::string_view text, std::string_view source, Letters letters,
              std::vector<ShardCell>* shards, std::vector<std::size_t>* columns = nullptr)
      : rest_(without_marks(text)),
        source_(source),
        letters_(letters),
        shards_(shards),
        columns_(columns) {}

  [[nodiscard]] Table read() {
    if (rest_.empty())
      raise(Errc::bad_data, source_, " is empty; a table has a line for each rank");
    while (!rest_.empty()) {
      line_begin_ = rest_.data();
      table_.begin_row();
      waiting_ = 0;
      for (std::string_view line = take_line(rest_); !line.empty();) {
        std::string_view const text = trimmed(take_until(line, ','));
        if (!text.empty()) cell(text);
      }
    }
    if (letters_ == Letters::torch_2_5) tell_backwards_apart();
    return std::move(table_);
  }

 private:
  [[nodiscard]] std::size_t column_of(std::string_view text) const {
    return static_cast<std::size_t>(text.data() - line_begin_) + 1;
  }
  [[noreturn]] void refuse(std::string_view text, std::string_view why) const {
    raise(Errc::bad_data, source_, ", line ", table_.ranks(), ", column ", column_of(text), ": '",
          text.substr(0, 60), "' ", why);
  }

  /// Makes whole backwards of those that were read as I and have no W.
  void tell_backwards_apart() {
    auto const unit = [](Action const& a) { return std::tuple(a.stage, a.microbatch, a.slice); };
    std::vector<std::tuple<int, int, std::int16_t>> weights;
    for (Action const& a : table_.actions)
      if (a.kind == Kind::backward_weight) weights.push_back(unit(a));
    std::sort(weights.begin(), weights.end());
    auto const tell = [&](Action& a) {
      if (a.kind == Kind::backward_input &&
          !std::binary_search(weights.begin(), weights.end(), unit(a)))
        a.kind = Kind::backward;
    };
    for (Action& a : table_.actions) tell(a);
    if (shards_ != nullptr)
      for (ShardCell& shard : *shards_) tell(shard.before);
  }

  void cell(std::string_view text) {
    constexpr std::string_view overlap = ")OVERLAP_F_B";
    if (text.front() != '(') {
      Action a{};
      if (action(text, a)) return add(a, text);
      if (shards_ == nullptr) return;
      shards_->push_back({table_.ranks() - 1, a.stage, text.ends_with("UNSHARD"), true, {}});
      ++waiting_;
      return;
    }
    std::string_view inside = text.substr(1);
    std::string_view const first = trimmed(take_until(inside, ';'));
    bool const split = first.data() + first.size() != text.data() + text.size();
    if (!split || text.size() < overlap.size() + 2 || !text.ends_with(overlap))
      refuse(text, "is not a cell; a pair is written (0F3;3B1)OVERLAP_F_B");
    inside.remove_suffix(std::min(inside.size(), overlap.size()));
    std::string_view const second = trimmed(inside);
    Action a{}, b{};
    bool const both = !first.empty() && action(first, a) && !second.empty() && action(second, b);
    if (!both || !can_overlap(a, b) || a.kind == Kind::backward_weight ||
        b.kind == Kind::backward_weight)
      refuse(text, "does not pair one forward with one backward");
    a.overlaps_next = true;
    add(a, first);
    add(b, second);
  }

  /// One action. False for the two cells that gather and release parameters, which a table of
  /// actions does not hold.
  bool action(std::string_view text, Action& a) const {
    std::string_view rest = text;
    a.stage = number(text, rest, "begins with a stage number");
    if (rest == "UNSHARD" || rest == "RESHARD") return false;
    if (rest == name(Kind::reduce_gradient)) {
      a.kind = Kind::reduce_gradient;
      return true;
    }
    std::string_view const letters =
        rest.substr(0, rest.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ_"));
    bool const old = letters_ == Letters::torch_2_5;
    int kind = 0;
    constexpr int kinds = static_cast<int>(Kind::recv_backward) + 1;
    while (kind < kinds && letters != name(static_cast<Kind>(kind))) ++kind;
    if (old && (letters == "B" || letters == "I"))
      kind = letters == "B" ? static_cast<int>(Kind::backward_input) : kinds;
    if (letters == "BW") {
      if (!old)
        refuse(text, stagger::text("is written B today; read the table by ", old_letters,
                                   " if PyTorch up to 2.5 wrote it"));
      kind = static_cast<int>(Kind::backward);
    }
    if (kind == kinds)
      refuse(text, old ? "has no known action of PyTorch up to 2.5; use F, B, W, BW, SEND_F, "
                         "RECV_F, SEND_B or RECV_B"
                       : "has no known action; use F, I, B, W, SEND_F, RECV_F, SEND_B or RECV_B");
    a.kind = static_cast<Kind>(kind);
    rest.remove_prefix(letters.size());
    a.microbatch = number(text, rest, "needs a microbatch number behind the action");
    if (rest.starts_with('s')) {
      rest.remove_prefix(1);
      int const slice = number(text, rest, "needs a slice number behind the s");
      if (slice > 32766) refuse(text, "has a slice above 32766");
      a.slice = static_cast<std::int16_t>(slice);
    }
    if (!rest.empty()) refuse(text, "goes on behind its last number; separate cells by commas");
    return true;
  }

  /// Takes a number from the front of `rest`.
  int number(std::string_view text, std::string_view& rest, char const* need) const {
    std::int64_t value = -1;
    for (; !rest.empty() && rest.front() >= '0' && rest.front() <= '9'; rest.remove_prefix(1)) {
      value = (value < 0 ? 0 : value * 10) + (rest.front() - '0');
      if (value > 2147483646) refuse(text, "holds a number that is not below 2^31 - 1");
    }
    if (value < 0) refuse(text, std::string("is not a cell: it ") + need);
    return static_cast<int>(value);
  }

  void add(Action const& a, std::string_view text) {
    table_.stages = std::max(table_.stages, a.stage + 1);
    table_.microbatches = std::max(table_.microbatches, a.microbatch + 1);
    table_.slices = std::max(table_.slices, a.slice + 1);
    table_.add(a);
    if (columns_ != nullptr) columns_->push_back(column_of(text));
    for (; waiting_ > 0; --waiting_) {
      ShardCell& shard = (*shards_)[shards_->size() - waiting_];
      shard.at_end = false;
      shard.before = a;
    }
  }

  std::string_view rest_;
  std::string_view source_;
  Letters letters_;
  std::vector<ShardCell>* shards_;
  std::vector<std::size_t>* columns_;
  std::size_t waiting_ = 0;  // shard cells in front of the next action of the line
  char const* line_begin_ = nullptr;
  Table table_{};
};

}  // namespace detail

/// Reads a table: a line for each rank, cells separated by commas, blanks around cells and empty
/// cells ignored, lines ended by LF or CRLF. A byte order mark at the front and blank lines at the
/// end are skipped; another blank line is a rank without actions. Counts are the largest index + 1.
/// Whether the table is legal is for `verify` to say.
/// @param source  the name of the text in error messages, a file name for instance
/// @param shards  takes `0UNSHARD` and `0RESHARD`, by rank and then in order; null: they are
///                skipped
/// @param letters what B stands for
/// @throws Error bad_data, naming line, column and value
[[nodiscard]] inline Table read_csv(std::string_view text, std::string_view source = "table",
                                    std::vector<ShardCell>* shards = nullptr,
                                    Letters letters = Letters::torch) {
  return detail::TableReader(text, source, letters, shards).read();
}

/// Where an action of a table stands in the text that `read_csv` made the table of.
/// @param rank, index  as in a `Fault`
/// @return its column in line rank + 1, in bytes from 1 behind a byte order mark; 0 where the line
///         has no such action
[[nodiscard]] inline std::size_t column_of(std::string_view text, int rank, int index,
                                           Letters letters = Letters::torch) {
  if (text.empty() || rank < 0 || index < 0) return 0;
  std::vector<std::size_t> columns;
  Table const table = detail::TableReader(text, "table", letters, nullptr, &columns).read();
  if (rank >= table.ranks() || index >= static_cast<int>(table.row(rank).size())) return 0;
  return columns[table.row_begin.data()[rank] + static_cast<unsigned>(index)];
}

/// Writes a table, a line for each rank, without idle cells; a rank without actions has an empty
/// cell. `read_csv` gives it back.
/// @param shards  as read with the table, or with the one it was lowered from; a cell whose action
///                is not there any more stands at the end of its line
[[nodiscard]] inline std::string write_csv(Table const& table,
                                           std::vector<ShardCell> const& shards = {}) {
  std::string text;
  bool const sliced = table.slices > 1;
  std::size_t shard = 0;
  for (int rank = 0; rank < table.ranks(); ++rank) {
    bool begun = false;
    auto const put = [&](std::string const& cell) {
      if (begun) text += ',';
      begun = true;
      text += cell;
    };
    auto const put_shards = [&](Action const* before) {
      for (; shard < shards.size() && shards[shard].rank == rank; ++shard) {
        ShardCell const& s = shards[shard];
        if (before != nullptr && (s.at_end || s.before != *before)) return;
        put(std::to_string(s.stage) + (s.gathers ? "UNSHARD" : "RESHARD"));
      }
    };
    auto const row = table.row(rank);
    for (std::size_t i = 0; i < row.size(); ++i) {
      put_shards(&row[i]);
      if (row[i].overlaps_next && i + 1 < row.size()) {
        put("(" + to_string(row[i], sliced) + ";" + to_string(row[i + 1], sliced) + ")OVERLAP_F_B");
        ++i;
      } else {
        put(to_string(row[i], sliced));
      }
    }
    put_shards(nullptr);
    text += begun ? "\n" : ",\n";  // an empty cell: blank lines at the end would not count as ranks
  }
  return text;
}

/// Reads `stage,forward_s,backward_input_s,backward_weight_s,transfer_s`, then one line for each
/// stage from 0 on, in seconds. Blanks around a field are ignored, lines end in LF or CRLF. A byte
/// order mark at the front and blank lines at the end are skipped.
/// @param source  the name of the text in error messages, a file name for instance
/// @throws Error bad_data, naming line, column (in bytes, from 1) and value
[[nodiscard]] inline Costs read_costs_csv(std::string_view text,
                                          std::string_view source = "stage costs") {
  constexpr std::array<std::string_view, 5> header{"stage", "forward_s", "backward_input_s",
                                                   "backward_weight_s", "transfer_s"};
  Costs costs;
  text = detail::without_marks(text);
  for (int line = 1; !text.empty(); ++line) {
    char const* const begin = text.data();
    std::string_view rest = detail::take_line(text);
    std::array<double, 5> numbers{};
    for (std::size_t field = 0; field < header.size(); ++field) {
      bool const last = rest.find(',') == std::string_view::npos;
      std::string_view const value = detail::trimmed(detail::take_until(rest, ','));
      auto const require = [&](bool holds, auto const&... why) {
        if (!holds)
          raise(Errc::bad_data, source, ", line ", line, ", column ", value.data() - begin + 1,
                ": '", value.substr(0, 60), "' ", why...);
      };
      require(last == (field + 1 == header.size()), "is field ", field + 1,
              " of a line that must have 5");
      if (line == 1) {
        require(value == header[field], "is not the header '", header[field], "'");
        continue;
      }
      double& number = numbers[field];
      auto const [stop, error] = from_chars(value.data(), value.data() + value.size(), number);
      require(
          error == std::errc{} && stop == value.data() + value.size() && detail::is_cost(number),
          "is not a finite number that is not negative");
      require(field > 0 || number == static_cast<double>(costs.stages.size()),
              "is not the next stage, ", costs.stages.size());
    }
    if (line > 1) {
      costs.stages.push_back({.forward_s = numbers[1],
                              .backward_input_s = numbers[2],
                              .backward_weight_s = numbers[3],
                              .transfer_s = numbers[4]});
    }
  }
  if (costs.stages.empty())
    raise(Errc::bad_data, source, " holds no stage; give a header and a line for each");
  return costs;
}

}  // namespace stagger::schedule
