// SPDX-License-Identifier: Apache-2.0
#pragma once
/// @file   Reads and writes tables in PyTorch's CSV, compute-only and with messages. Strict: what
/// is not in the
///         grammar is an error that names line, column and value.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <stagger/core/error.hpp>
#include <stagger/schedule/fault.hpp>
#include <stagger/schedule/table.hpp>

namespace stagger::schedule {

/// A cell that gathers the sharded parameters of a stage (UNSHARD) or lets go of them (RESHARD).
/// Tables hold none, since nothing here shards parameters; who wants them back in what is written
/// keeps them beside the table.
struct ShardCell {
  int rank = 0;
  int stage = 0;
  bool gathers = true;  ///< UNSHARD, else RESHARD
  bool at_end = true;   ///< of the row; else it stands right before `before`
  Action before{};
  friend constexpr bool operator==(ShardCell const&, ShardCell const&) = default;
};

namespace detail {

/// Reads the cells of one text. Lines and columns count from 1, columns in bytes.
class TableReader {
 public:
  TableReader(std::string_view text, std::string_view source, std::vector<ShardCell>* shards)
      : text_(text), source_(source), shards_(shards) {}

  [[nodiscard]] Table read() {
    if (text_.empty()) refuse(0, 0, "is empty; a table has a line for each rank");
    std::size_t begin = 0;
    while (begin < text_.size()) {
      std::size_t end = text_.find('\n', begin);
      if (end == std::string_view::npos) end = text_.size();
      std::size_t stop = end;
      if (stop > begin && text_[stop - 1] == '\r') --stop;
      line_begin_ = begin;
      ++line_;
      table_.begin_row();
      row(begin, stop);
      waiting_ = 0;
      begin = end + 1;
    }
    return table_;
  }

 private:
  [[noreturn]] void refuse(std::size_t begin, std::size_t end, std::string const& why) const {
    std::string where = std::string(source_);
    if (line_ > 0) {
      where += ", line " + std::to_string(line_) + ", column " +
               std::to_string(begin - line_begin_ + 1) + ": '" +
               std::string(text_.substr(begin, end - begin < 60 ? end - begin : 60)) + "'";
    }
    raise(Errc::bad_data, where, " ", why);
  }

  static bool blank(char c) noexcept { return c == ' ' || c == '\t'; }

  void trim(std::size_t& begin, std::size_t& end) const noexcept {
    while (begin < end && blank(text_[begin])) ++begin;
    while (begin < end && blank(text_[end - 1])) --end;
  }

  void row(std::size_t begin, std::size_t end) {
    while (begin <= end) {
      std::size_t comma = text_.substr(0, end).find(',', begin);
      if (comma == std::string_view::npos) comma = end;
      std::size_t from = begin, to = comma;
      trim(from, to);
      if (from < to) cell(from, to);
      begin = comma + 1;
    }
  }

  void cell(std::size_t begin, std::size_t end) {
    constexpr std::string_view overlap = ")OVERLAP_F_B";
    std::string_view const whole = text_.substr(begin, end - begin);
    if (whole.front() != '(') {
      Action a{};
      if (action(begin, end, a)) return add(a);
      if (shards_ == nullptr) return;
      shards_->push_back({line_ - 1, a.stage, whole.ends_with("UNSHARD"), true, {}});
      ++waiting_;
      return;
    }
    std::size_t const half = whole.find(';');
    if (half == std::string_view::npos || whole.size() < overlap.size() + 2 ||
        !whole.ends_with(overlap)) {
      refuse(begin, end, "is not a cell; a pair is written (0F3;3B1)OVERLAP_F_B");
    }
    Action a{}, b{};
    std::size_t from = begin + 1, to = begin + half;
    trim(from, to);
    bool both = from < to && action(from, to, a);
    from = begin + half + 1;
    to = end - overlap.size();
    trim(from, to);
    both = both && from < to && action(from, to, b);
    bool const pairs = both && is_compute(a.kind) && is_compute(b.kind) &&
                       a.kind != Kind::backward_weight && b.kind != Kind::backward_weight &&
                       (a.kind == Kind::forward) != (b.kind == Kind::forward);
    if (!pairs) refuse(begin, end, "does not pair one forward with one backward");
    a.overlaps_next = true;
    add(a);
    add(b);
  }

  /// One action. False for the two cells that gather and release parameters, which a table of
  /// actions does not hold.
  bool action(std::size_t begin, std::size_t end, Action& a) const {
    std::size_t at = begin;
    a.stage = number(begin, end, at, "begins with a stage number");
    std::string_view const rest = text_.substr(at, end - at);
    if (rest == "UNSHARD" || rest == "RESHARD") return false;
    if (rest == name(Kind::reduce_gradient)) {
      a.kind = Kind::reduce_gradient;
      return true;
    }
    std::size_t letters = 0;
    while (letters < rest.size() &&
           (rest[letters] == '_' || (rest[letters] >= 'A' && rest[letters] <= 'Z')))
      ++letters;
    bool known = false;
    for (int k = 0; k <= static_cast<int>(Kind::recv_backward); ++k) {
      if (rest.substr(0, letters) == name(static_cast<Kind>(k))) {
        a.kind = static_cast<Kind>(k);
        known = true;
      }
    }
    if (!known)
      refuse(begin, end, "has no known action; use F, I, B, W, SEND_F, RECV_F, SEND_B or RECV_B");
    at += letters;
    a.microbatch = number(begin, end, at, "needs a microbatch number behind the action");
    if (at < end && text_[at] == 's') {
      ++at;
      int const slice = number(begin, end, at, "needs a slice number behind the s");
      if (slice > 32766) refuse(begin, end, "has a slice above 32766");
      a.slice = static_cast<std::int16_t>(slice);
    }
    if (at != end) refuse(begin, end, "goes on behind its last number; separate cells by commas");
    return true;
  }

  int number(std::size_t begin, std::size_t end, std::size_t& at, char const* need) const {
    std::size_t const from = at;
    std::int64_t value = 0;
    while (at < end && text_[at] >= '0' && text_[at] <= '9') {
      value = value * 10 + (text_[at] - '0');
      if (value > 2147483646) refuse(begin, end, "holds a number that is not below 2^31 - 1");
      ++at;
    }
    if (at == from) refuse(begin, end, std::string("is not a cell: it ") + need);
    return static_cast<int>(value);
  }

  void add(Action const& a) {
    if (a.stage >= table_.stages) table_.stages = a.stage + 1;
    if (a.microbatch >= table_.microbatches) table_.microbatches = a.microbatch + 1;
    if (a.slice >= table_.slices) table_.slices = a.slice + 1;
    table_.add(a);
    for (; waiting_ > 0; --waiting_) {
      ShardCell& shard = (*shards_)[shards_->size() - waiting_];
      shard.at_end = false;
      shard.before = a;
    }
  }

  std::string_view text_;
  std::string_view source_;
  std::vector<ShardCell>* shards_;
  std::size_t waiting_ = 0;  // of them, for the next action of the line
  std::size_t line_begin_ = 0;
  int line_ = 0;
  Table table_{};
};

}  // namespace detail

/// Reads a table: a line for each rank, cells separated by commas, blanks around cells and empty
/// cells ignored, lines ended by LF or CRLF. Counts are the largest index + 1. Whether the table is
/// legal is for `verify` to say.
/// @param source  what errors call the text, a file name for instance
/// @param shards  takes `0UNSHARD` and `0RESHARD`, by rank and then in order; null: they are read
///                over
/// @throws Error bad_data, naming line, column and value
[[nodiscard]] inline Table read_csv(std::string_view text, std::string_view source = "table",
                                    std::vector<ShardCell>* shards = nullptr) {
  return detail::TableReader(text, source, shards).read();
}

/// Where an action of a table stands in the text that `read_csv` made the table of.
/// @param rank, position  as in a `Fault`
/// @return its column in line rank + 1, in bytes from 1; 0 where the line has no such action
[[nodiscard]] inline std::size_t column_of(std::string_view text, int rank, int position) {
  if (rank < 0 || position < 0) return 0;
  for (int line = 0; line < rank; ++line) {
    std::size_t const end = text.find('\n');
    if (end == std::string_view::npos) return 0;
    text.remove_prefix(end + 1);
  }
  text = text.substr(0, text.find('\n'));
  constexpr std::string_view blanks = " \t\r";
  int seen = 0;
  for (std::size_t begin = 0; begin <= text.size();) {
    std::size_t const comma = std::min(text.find(',', begin), text.size());
    std::size_t const at = text.find_first_not_of(blanks, begin);
    if (at < comma) {
      std::string_view const cell = text.substr(at, comma - at);
      bool const silent = cell.find("SHARD") != std::string_view::npos;  // read over
      bool const pair = cell.front() == '(';
      if (!silent && position < seen + (pair ? 2 : 1)) {
        std::size_t const inside = !pair ? at : position == seen ? at + 1 : text.find(';', at) + 1;
        return text.find_first_not_of(blanks, inside) + 1;
      }
      seen += silent ? 0 : pair ? 2 : 1;
    }
    begin = comma + 1;
  }
  return 0;
}

/// Writes a table, a line for each rank, without idle cells. `read_csv` gives it back.
/// @param shards  as read with the table, or with the one it was lowered from; a cell whose action
/// is
///                not there any more stands at the end of its line
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
    text += '\n';
  }
  return text;
}

}  // namespace stagger::schedule
