// SPDX-License-Identifier: Apache-2.0
// messages_fuzz [COUNT [SEED]]: COUNT mutated connections (default 10^6), of some frames each, through
// the reader of frames and a parameter server's end. Half of them have right checksums behind what was
// changed. Each is read, or refused by a stagger::Error; anything else ends the program.

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <stagger/collective/parameter_server.hpp>
#include <stagger/collective/server_connection.hpp>
#include <stagger/core/checksum.hpp>
#include <stagger/core/error.hpp>
#include <stagger/engine/setup.hpp>
#include <stagger/host/detail/frames.hpp>
#include <stagger/model/optimizer.hpp>

#include "driver.hpp"

namespace {

namespace sg = stagger;
namespace remote = stagger::collective::detail;
namespace framed = stagger::detail::framed;
using remote::Message;
using Kind = remote::MessageKind;

constexpr std::size_t layers = 2;
constexpr std::size_t floats = 16;  // of each
constexpr std::size_t bytes = floats * sizeof(float);

std::string text_of(void const* from, std::size_t count) {
  return {static_cast<char const*>(from), count};
}
std::string frame(Message message, std::string const& payload = {}) {
  message.bytes = payload.size();
  std::string all = text_of(&message, sizeof(message)) + payload;
  sg::detail::WideChecksum sum;
  sum.add(std::as_bytes(std::span(all)));
  std::uint64_t const value = sum.value();
  return all + text_of(&value, sizeof(value));
}
/// Gives frames the checksum of what they have become, as far as lengths can be followed.
std::string mended(std::string all) {
  std::size_t at = sizeof(framed::Hello);
  while (at + sizeof(Message) <= all.size()) {
    Message message;
    std::memcpy(&message, all.data() + at, sizeof(message));
    if (message.bytes > all.size() - at - sizeof(message)) break;
    std::size_t const end = at + sizeof(message) + message.bytes;
    if (end + 8 > all.size()) break;
    sg::detail::WideChecksum sum;
    sum.add(std::as_bytes(std::span(all).subspan(at, end - at)));
    std::uint64_t const value = sum.value();
    std::memcpy(all.data() + end, &value, sizeof(value));
    at = end + 8;
  }
  return all;
}

std::string hello() {
  framed::Hello const hello;
  return text_of(&hello, sizeof(hello));
}
std::string request(int worker) {
  std::vector<sg::detail::LayerParameters> model(layers);
  for (std::size_t l = 0; l < layers; ++l) {
    sg::List<sg::detail::ParameterDeclaration> declared;
    sg::detail::ParameterDeclaration d;
    d.name = "weight";
    d.size = floats;
    d.initial.assign(bytes, std::byte{0});
    declared.push_back(std::move(d));
    model[l].adopt(std::move(declared), static_cast<int>(l), 0);
  }
  sg::optimizer::Sgd const sgd;
  sg::detail::WorkerRules rules;
  rules.optimizer = sg::detail::optimizer_call<true>(sgd);
  sg::ByteWriter out;
  remote::JoinRequest::write(out, worker, {model.data(), model.size()}, rules);
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
  return {joined,
          stream,
          ended,
          ended + frame({.kind = Kind::leave}),
          stream + frame({.kind = Kind::fail, .stream = 1}),
          hello()};
}

std::vector<std::string> const& pieces() {
  static std::vector<std::string> const all{
      frame({.kind = Kind::push, .number = 1}, std::string(bytes, '\2')),
      frame({.kind = Kind::ask, .rounds = 7}),
      frame({.kind = Kind::read, .layer = 1}),
      frame({.kind = Kind::begin, .stream = 2}),
      frame({.kind = Kind::end}),
      frame({.kind = Kind::leave}),
      std::string(8, '\0'),
      std::string(8, '\xff'),
      std::string("\x01\0", 2)};
  return all;
}
std::vector<std::string_view> const views(pieces().begin(), pieces().end());
fuzz::Program const program{"messages_fuzz", views, seeds(), 40, 4};

struct Nowhere final : remote::Transport {
  void wake() noexcept override {}
  void close() noexcept override {}
};

/// How far it came: 0 refused, 1 read.
int connection(std::string const& text) {
  sg::collective::ParameterServer const server({.workers = 1});
  sg::optimizer::Sgd const sgd;
  remote::RemoteRules rules;
  rules.optimizer = sg::detail::optimizer_call<false>(sgd);
  rules.model_bytes = 1U << 16U;
  framed::Hello const expected;
  Nowhere transport;
  auto const reader = std::make_unique<framed::FrameReader>(&expected);
  auto const end = std::make_unique<remote::ServerConnection>(server.in_process(), rules);
  end->carried_by(transport);
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
      [&](std::string const& text) { ++came[connection((mend = !mend) ? mended(text) : text)]; },
      [&](long long count, unsigned long long seed) {
        std::printf("%lld connections with seed %llu: %lld refused, %lld read\n", count, seed,
                    came[0], came[1]);
        return came[0] > 0 && came[1] > 0;
      });
}
