// SPDX-License-Identifier: Apache-2.0
// messages_fuzz [COUNT [SEED]]: COUNT mutated connections (default 10^6), of some frames each, through
// the reader of frames and a parameter server's end. Half of them have right checksums behind what was
// changed. Each is read, or refused by a stagger::Error; anything else ends the program.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "connection.hpp"
#include "driver.hpp"

namespace {

using namespace fuzz;

std::string hello() {
  framed::Hello const hello;
  return text_of(&hello, sizeof(hello));
}
std::string request(int worker) {
  auto const own = model();
  sg::ByteWriter out;
  remote::JoinRequest::write(out, worker, own, rules_of(Models::waves), run_name);
  return text_of(out.data(), out.size());
}

std::vector<std::string> seeds() {
  std::string const values(bytes, '\1');
  std::string joined = hello() + frame({.kind = Kind::join}, request(0));
  for (std::uint32_t l = 0; l < layers; ++l)
    joined += frame({.kind = Kind::values, .layer = l}, values);
  std::string stream = joined + frame({.kind = Kind::begin, .stream = 1});
  for (std::uint32_t l = 0; l < layers; ++l) stream += frame({.kind = Kind::read, .layer = l});
  for (std::uint64_t push = 1; push < 3; ++push)
    for (std::uint32_t l = 0; l < layers; ++l) {
      stream += frame({.kind = Kind::push, .layer = l, .stream = 1, .number = push}, values);
      stream += frame(
          {.kind = Kind::ask, .layer = l, .stream = 1, .rounds = static_cast<std::uint32_t>(push)});
    }
  std::string ended = stream;
  for (std::uint32_t l = 0; l < layers; ++l) {
    ended += frame({.kind = Kind::last_push, .layer = l, .stream = 1, .number = 3}, values);
    ended += frame({.kind = Kind::ask_last, .layer = l, .stream = 1});
  }
  ended += frame({.kind = Kind::who}) + frame({.kind = Kind::end, .stream = 1});
  std::vector<std::string> all{joined,
                               stream,
                               ended,
                               ended + frame({.kind = Kind::leave}),
                               stream + frame({.kind = Kind::fail, .stream = 1}),
                               hello()};
  for (Models const models :
       {Models::waves, Models::steps, Models::late, Models::late, Models::arriving})
    all.push_back(hello() + Recorded(models).of_worker);
  return all;
}

std::vector<std::string> const& pieces() {
  static std::vector<std::string> const all{
      frame({.kind = Kind::push, .number = 1}, std::string(bytes, '\2')),
      frame({.kind = Kind::ask, .rounds = 7}),
      frame({.kind = Kind::read, .layer = 1}),
      frame({.kind = Kind::begin, .stream = 2}),
      frame({.kind = Kind::end}),
      frame({.kind = Kind::leave}),
      frame({.kind = Kind::push_rest, .stream = 1, .number = 2}, std::string(bytes - 8, '\2')),
      frame({.kind = Kind::push_late, .stream = 1, .number = 2}, std::string(8, '\2')),
      frame({.kind = Kind::push_late, .stream = 1, .number = 3}, std::string(bytes, '\2')),
      frame({.kind = Kind::ask_rest, .stream = 1, .rounds = 2, .number = 8}),
      frame({.kind = Kind::ask_late, .stream = 1, .rounds = 2, .number = 8}),
      frame({.kind = Kind::report, .stream = 1, .number = 0x7ff8000000000000U}),
      frame({.kind = Kind::ask_choice, .stream = 1, .rounds = 1}),
      frame({.kind = Kind::resume, .stream = 1}),
      std::string(8, '\0'),
      std::string(8, '\xff'),
      std::string("\x01\0", 2)};
  return all;
}
std::vector<std::string_view> const views(pieces().begin(), pieces().end());
Program const program{"messages_fuzz", views, seeds(), 40, 4};

struct Nowhere final : remote::Transport {
  void wake() noexcept override {}
  void close() noexcept override {}
};

/// What was read: kinds of messages, of which each bit stands for one.
std::uint64_t read_kinds = 0;

/// How far it came: 0 refused, 1 read.
int connection(std::string const& text) {
  sg::collective::ParameterServer const server({.workers = 1, .run = run_name});
  remote::RemoteRules const rules = server_rules();
  framed::Hello const expected;
  Nowhere transport;
  auto const reader = std::make_unique<framed::FrameReader>(&expected);
  struct Told final : remote::MessageEnd {
    explicit Told(std::shared_ptr<remote::ServerInProcess> server, remote::RemoteRules const& rules)
        : end(std::move(server), rules) {}
    std::span<std::byte> payload_buffer(Message const& message) override {
      return end.payload_buffer(message);
    }
    void received(Message const& message) override {
      end.received(message);
      read_kinds |= std::uint64_t{1} << static_cast<unsigned>(message.kind) % 64U;
    }
    bool next(Message& message, std::span<std::byte const>& payload) override {
      return end.next(message, payload);
    }
    void gone(std::exception_ptr why) noexcept override { end.gone(why); }
    remote::ServerConnection end;
  };
  auto const end = std::make_unique<Told>(server.in_process(), rules);
  end->end.carried_by(transport);
  try {
    for (std::size_t at = 0; at < text.size();) {
      auto const space = reader->space();
      std::size_t const count =
          std::min(space.size(), std::min<std::size_t>(777, text.size() - at));
      std::memcpy(space.data(), text.data() + at, count);
      at += count;
      reader->came(count, *end);
      Message message;
      std::span<std::byte const> payload;
      while (end->next(message, payload))
        if (payload.size() != message.bytes) program.fail("a message has another length", text);
    }
    return 1;
  } catch (sg::Error const& error) {
    std::string_view const words = error.what();
    if (words.size() < 20 || words.find("; ") == words.npos)
      program.fail("a refusal says nothing", text);
    return 0;
  }
}

}  // namespace

int main(int argc, char** argv) {
  long long came[2] = {0, 0};
  bool mend = false;
  return program.run(
      argc, argv,
      [&](std::string const& text) {
        mend = !mend;
        ++came[connection(mend ? mended(text, sizeof(framed::Hello)) : text)];
      },
      [&](long long count, unsigned long long seed) {
        std::printf("%lld connections with seed %llu: %lld refused, %lld read\n", count, seed,
                    came[0], came[1]);
        std::uint64_t all = 0;
        for (auto kind = static_cast<unsigned>(Kind::join);
             kind < static_cast<unsigned>(Kind::resume); ++kind)
          all |= std::uint64_t{1} << kind;
        return came[0] > 0 && came[1] > 0 && (count < 10000 || (read_kinds & all) == all);
      });
}
