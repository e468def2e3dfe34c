// SPDX-License-Identifier: Apache-2.0
#include <stagger/schedule/csv.hpp>

#include <random>
#include <string>
#include <vector>

#include <stagger/schedule/one_f_one_b.hpp>
#include <stagger/schedule/proof/lower.hpp>

#include "catch.hpp"

namespace csv_test {

using namespace stagger;
using namespace stagger::schedule;

TEST_CASE("schedule/csv: every kind of cell is read", "[schedule]") {
  Table const t =
      read_csv(" 0F1 ,,12SEND_F3,0UNSHARD,\t1RECV_B2\r\n(0F3;1B1)OVERLAP_F_B,4I5s2,0REDUCE_GRAD\n");
  REQUIRE(t.ranks() == 2);
  CHECK(t.stages == 13);
  CHECK(t.microbatches == 6);
  CHECK(t.slices == 3);
  REQUIRE(t.row(0).size() == 3);
  CHECK(t.row(0)[0] == Action{.kind = Kind::forward, .stage = 0, .microbatch = 1});
  CHECK(t.row(0)[1] == Action{.kind = Kind::send_forward, .stage = 12, .microbatch = 3});
  CHECK(t.row(0)[2] == Action{.kind = Kind::recv_backward, .stage = 1, .microbatch = 2});
  REQUIRE(t.row(1).size() == 4);
  CHECK(t.row(1)[0] ==
        Action{
            .kind = Kind::forward, .stage = 0, .microbatch = 3, .slice = 0, .overlaps_next = true});
  CHECK(t.row(1)[1] == Action{.kind = Kind::backward, .stage = 1, .microbatch = 1});
  CHECK(t.row(1)[2] ==
        Action{.kind = Kind::backward_input, .stage = 4, .microbatch = 5, .slice = 2});
  CHECK(t.row(1)[3] == Action{.kind = Kind::reduce_gradient, .stage = 0});
}

TEST_CASE("schedule/csv: a malformed cell is an error that names line, column and value",
          "[schedule]") {
  for (char const* cell : {"0F",
                           "F0",
                           "0F0junk",
                           "0BW1",
                           "0FULL_BACKWARD0",
                           "()OVERLAP_F_B",
                           "(0F0;1F1)OVERLAP_F_B",
                           "(0F0;1B1)",
                           "(0F0;1B1)OVERLAP_F_Bx",
                           "(0F0,1B1)OVERLAP_F_B",
                           "0f0",
                           "-1F0",
                           "0F-1",
                           "0 F0",
                           "0F 0",
                           "0F0s",
                           "0F0s40000",
                           "2147483647F0",
                           "99999999999999999999F0",
                           "0F2147483648",
                           "0UNSHARD1",
                           "0SEND_F",
                           "0SENDF1",
                           "\"0F0\"",
                           "0F0;",
                           "(0F0;1W1)OVERLAP_F_B",
                           "(0F0;0UNSHARD)OVERLAP_F_B",
                           "(;)OVERLAP_F_B",
                           "0F0\r",
                           "\xef\xbb\xbf"
                           "0F0"}) {
    std::string const text = std::string("0F0,1F0\n0B0, ") + cell + " ,1B0\n";
    std::string const shown = printable(std::string(cell).substr(0, std::string(cell).find(',')));
    CAPTURE(cell);
    try {
      static_cast<void>(read_csv(text, "rows.csv"));
      FAIL("was read");
    } catch (Error const& e) {
      CHECK(e.code() == Errc::bad_data);
      CHECK_THAT(e.what(), Catch::StartsWith("rows.csv, line 2, column 6: '" + shown));
    }
  }
  CHECK_THROWS_WITH(read_csv(""), Catch::Contains("empty"));
}

TEST_CASE("schedule/csv: a byte order mark and blank lines at the end are skipped", "[schedule]") {
  Table const plain = read_csv("0F0,0B0\n1F0,1B0\n");
  for (char const* text : {"\xEF\xBB\xBF"
                           "0F0,0B0\n1F0,1B0\n",
                           "0F0,0B0\n1F0,1B0\n\n",
                           "\xEF\xBB\xBF"
                           "0F0,0B0\r\n1F0,1B0\r\n \t\r\n\r\n",
                           "0F0,0B0\n1F0,1B0"}) {
    CAPTURE(text);
    CHECK(read_csv(text) == plain);
    CHECK(column_of(text, 0, 1) == 5);
  }
  CHECK(read_csv("0F0\n\n1F0\n").row(1).empty());  // for `verify` to complain about
  CHECK(read_csv("0F0\n,,\n").ranks() == 2);       // idle cells are no blank line
  CHECK_THROWS_WITH(read_csv("\xEF\xBB\xBF"
                             "0F0,x\n"),
                    Catch::Contains("line 1, column 5: 'x'"));
  for (char const* text : {"", "\n", " \r\n\n", "\xEF\xBB\xBF", "\xEF\xBB\xBF\n"})
    CHECK_THROWS_WITH(read_csv(text), Catch::Contains("is empty"));
  CHECK_THROWS_WITH(read_csv(std::string_view("@\0\0{", 4)),
                    Catch::Contains("'@\\x00\\x00{' is not a cell"));
}

TEST_CASE("schedule/csv: in the letters of PyTorch up to 2.5, B is I where there is a W",
          "[schedule]") {
  auto const read = [](std::string const& text, std::vector<ShardCell>* shards = nullptr) {
    return read_csv(text, "old", shards, Letters::torch_2_5);
  };
  CHECK(write_csv(read("0F0,0F1,0B0,0W0,0B1,0W1\n1F0,1B0,1W0,1F1,1B1,1W1\n")) ==
        "0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1I0,1W0,1F1,1I1,1W1\n");
  // Whole backwards stay whole, as B or as BW, also where W stands on another rank or first.
  CHECK(write_csv(read("0F0,0B0,0F1,0BW1\n1W1,1B1,1B0\n")) == "0F0,0B0,0F1,0B1\n1W1,1I1,1B0\n");
  CHECK(write_csv(read("0F0s0,0F0s1,0B0s1,0B0s0,0W0s1\n")) == "0F0s0,0F0s1,0I0s1,0B0s0,0W0s1\n");
  CHECK(write_csv(read("0F1,(0F0;0B1)OVERLAP_F_B,0W1,0B0\n")) ==
        "0F1,(0F0;0I1)OVERLAP_F_B,0W1,0B0\n");
  CHECK(column_of("0F0,0BW0\n", 0, 1, Letters::torch_2_5) == 5);
  std::vector<ShardCell> shards;
  std::string const sharded = "0F0,0UNSHARD,0B0,0W0\n";
  CHECK(write_csv(read(sharded, &shards), shards) == "0F0,0UNSHARD,0I0,0W0\n");
  CHECK_THROWS_WITH(read("0F0,0I0\n"), Catch::Contains("no known action of PyTorch up to 2.5"));
  CHECK_THROWS_WITH(read_csv("0F0,0BW0\n"),
                    Catch::Contains("'0BW0' is written B today") && Catch::Contains("torch_2_5"));
}

TEST_CASE("schedule/csv: an action is found again in its text", "[schedule]") {
  std::string const text =
      " 0F1 ,,12SEND_F3,0UNSHARD,\t1RECV_B2\r\n(0F3; 1B1)OVERLAP_F_B,4I5s2,0REDUCE_GRAD\n";
  Table const t = read_csv(text);
  std::vector<std::vector<std::size_t>> const columns{{2, 8, 28}, {2, 7, 23, 29}};
  for (int r = 0; r < t.ranks(); ++r) {
    auto const row = t.row(r);
    auto const& mine = columns[static_cast<std::size_t>(r)];
    REQUIRE(row.size() == mine.size());
    for (std::size_t i = 0; i < row.size(); ++i) {
      CAPTURE(r, i);
      CHECK(column_of(text, r, static_cast<int>(i)) == mine[i]);
    }
    CHECK(column_of(text, r, static_cast<int>(row.size())) == 0);
  }
  CHECK(column_of(text, 2, 0) == 0);
  CHECK(column_of(text, 7, 0) == 0);
  CHECK(column_of(text, -1, 0) == 0);
  CHECK(column_of("", 0, 0) == 0);
}

TEST_CASE("schedule/csv: what is written is read back, sliced and with pairs", "[schedule]") {
  Table const t = OneFOneB{}.table({3, 5});
  CHECK(read_csv(write_csv(t)) == t);
  CHECK(write_csv(OneFOneB{}.table({1, 2})) == "0F0,0B0,0F1,0B1\n");
  Table odd{.stages = 2, .microbatches = 2, .slices = 2};
  odd.begin_row();
  odd.add({.kind = Kind::forward, .stage = 0, .microbatch = 1, .slice = 1, .overlaps_next = true});
  odd.add({.kind = Kind::backward, .stage = 1, .microbatch = 0, .slice = 0});
  odd.add({.kind = Kind::send_backward, .stage = 1, .microbatch = 0, .slice = 0});
  CHECK(write_csv(odd) == "(0F1s1;1B0s0)OVERLAP_F_B,1SEND_B0s0\n");
  CHECK(read_csv(write_csv(odd)) == odd);
}

TEST_CASE("schedule/csv: UNSHARD and RESHARD come back where they stood, lowered or not",
          "[schedule]") {
  std::string const text =
      "0UNSHARD,0F0,0F1,0RESHARD,0UNSHARD,0B0,0B1,0REDUCE_GRAD,0RESHARD\n"
      "1UNSHARD,1F0,(1F1;1B0)OVERLAP_F_B,1RESHARD,1B1\n";
  std::vector<ShardCell> shards;
  Table const t = read_csv(text, "table", &shards);
  CHECK(t == read_csv(text));
  REQUIRE(shards.size() == 6);
  CHECK(shards[0] == ShardCell{.rank = 0, .stage = 0, .at_end = false, .before = t.row(0)[0]});
  CHECK(shards[3] == ShardCell{.rank = 0, .stage = 0, .gathers = false});
  CHECK(write_csv(t, shards) == text);
  CHECK(read_csv(write_csv(t)) == t);
  CHECK(write_csv(lower(t), shards) ==
        "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0RECV_B1,0RESHARD,0UNSHARD,0B0,0B1,"
        "0REDUCE_GRAD,0RESHARD\n"
        "1RECV_F0,1RECV_F1,1UNSHARD,1F0,(1F1;1B0)OVERLAP_F_B,1SEND_B0,1RESHARD,1B1,1SEND_B1\n");
}

TEST_CASE("schedule/csv: broken text ends in an error or a table, never otherwise", "[schedule]") {
  std::string const good =
      write_csv(OneFOneB{}.table({2, 3})) + "(0F3;1B1)OVERLAP_F_B,4I5s2,0SEND_F1";
  std::string const letters = "0123456789FBIWs,;()\n\r_SENDRCVOLAP ";
  std::mt19937 random(7);
  int read = 0, refused = 0;
  for (int i = 0; i < 50000; ++i) {
    std::string text = good;
    for (int k = 0; k < 1; ++k) {
      std::size_t const at = random() % text.size();
      char const c = letters[random() % letters.size()];
      switch (random() % 3) {
        case 0:
          text[at] = c;
          break;
        case 1:
          text.insert(at, 1, c);
          break;
        default:
          text.erase(at, 1);
          break;
      }
    }
    try {
      Table const t = read_csv(text);
      REQUIRE(read_csv(write_csv(t)) == t);
      ++read;
    } catch (Error const& e) {
      REQUIRE(e.code() == Errc::bad_data);
      ++refused;
    }
  }
  CHECK(read > 1000);
  CHECK(refused > 1000);
}

}  // namespace csv_test
