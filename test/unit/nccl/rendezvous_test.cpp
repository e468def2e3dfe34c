// SPDX-License-Identifier: Apache-2.0
#include <stagger/nccl/rendezvous.hpp>

#include "catch.hpp"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cuda_stand_in/stand_in.hpp"

namespace rendezvous_test {

namespace sg = stagger;
namespace si = cuda_stand_in;
namespace tcp = sg::nccl::detail;

namespace {

using Got = std::optional<sg::nccl::Invitation>;

/// A socket at a port of an address, which may listen.
struct Held {
  explicit Held(char const* address, int port = 0, bool listens = true)
      : socket(
            ::socket(std::strchr(address, ':') != nullptr ? AF_INET6 : AF_INET, SOCK_STREAM, 0)) {
    std::string error;
    at = tcp::resolve(address, error).at(0);
    at.set_port(port);
    REQUIRE(::bind(socket.get(), reinterpret_cast<::sockaddr*>(&at.storage), at.size) == 0);
    REQUIRE(::getsockname(socket.get(), reinterpret_cast<::sockaddr*>(&at.storage), &at.size) == 0);
    if (listens) REQUIRE(::listen(socket.get(), 0) == 0);
  }
  [[nodiscard]] int port() const {
    return ntohs(
        reinterpret_cast<::sockaddr_in const&>(at.storage).sin_port);  // both have it there
  }

  tcp::Socket socket;
  tcp::Address at;
};

/// A port that was free a moment ago, as were the `more` after it.
int free_port(int more = 0) {
  for (;;) {
    int const port = Held("::", 0, false).port();
    int error = 0;
    int free = 0;
    for (int i = 0; i <= more; ++i) free += tcp::listen_on(port + i, error) ? 1 : 0;
    if (free == more + 1) return port;
  }
}

tcp::Socket connected(int port, std::string const& says = {}) {
  std::string error;
  auto at = tcp::resolve("localhost", error).at(0);
  at.set_port(port);
  for (tcp::Deadline const end(20);; end.pause(1)) {
    REQUIRE(end.left_ms() != 0);
    tcp::Socket socket(::socket(at.storage.ss_family, SOCK_STREAM, 0));
    if (::connect(socket.get(), reinterpret_cast<::sockaddr*>(&at.storage), at.size) != 0) continue;
    REQUIRE(tcp::send_all(socket, says.data(), says.size()));
    return socket;
  }
}

sg::collective::Launch launch(int rank, int size, char const* address, int port) {
  sg::collective::Launch result;
  result.launcher = "a test";
  result.rank = rank;
  result.size = size;
  result.address = address;
  result.port = port;
  return result;
}

/// A rank on a thread of its own: what it got, or the words of its error.
struct Rank {
  Rank(sg::collective::Launch const& who, sg::nccl::Rendezvous const& options)
      : thread([this, who, options] {
          try {
            got = sg::nccl::invite(who, options);
          } catch (sg::Error const& error) {
            words = error.what();
            code = error.code();
          }
        }) {}
  ~Rank() { join(); }
  Rank(Rank&&) = delete;
  Rank& join() {
    if (thread.joinable()) thread.join();
    return *this;
  }

  Got got;
  std::string words;
  sg::Errc code{};
  std::thread thread;
};

/// Each rank on a thread, the last first.
std::vector<Got> all(int ranks, sg::collective::Launch who, sg::nccl::Rendezvous const& options) {
  std::vector<std::unique_ptr<Rank>> threads;
  who.size = ranks;
  for (who.rank = ranks - 1; who.rank >= 0; --who.rank)
    threads.push_back(std::make_unique<Rank>(who, options));
  std::vector<Got> got;
  for (auto& thread : threads) {
    CHECK(thread->join().words == "");
    got.push_back(thread->got);
  }
  return got;
}

void require_one_id(std::vector<Got> const& got) {
  for (auto const& one : got) {
    REQUIRE(one.has_value());
    CHECK(std::memcmp(&one->id, &got[0]->id, sizeof one->id) == 0);
  }
}

sg::Errc refused(sg::collective::Launch const& who, sg::nccl::Rendezvous const& options) {
  Rank rank(who, options);
  REQUIRE_FALSE(rank.join().got.has_value());
  return rank.code;
}

bool has(std::string const& words, char const* part) {
  CAPTURE(words, part);
  return words.find(part) != std::string::npos;
}

/// From here on this thread, and those that it starts, have no sockets of IPv6.
[[nodiscard]] bool without_ipv6() {
  ::sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(::seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(::seccomp_data, args[0])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_INET6, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAFNOSUPPORT),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  ::sock_fprog const program{std::size(code), code};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/// `body` on a thread without IPv6. @return  whether this system can play that
template <class Body> bool on_ipv4(Body body) {
  bool can = false;
  std::thread([&] {
    can = without_ipv6() && ::socket(AF_INET6, SOCK_STREAM, 0) < 0;
    if (can) body();
  }).join();
  return can;
}

std::string temporary(char const* name) {
  return sg::text("rendezvous_test.", name, ".", ::getpid());
}

}  // namespace

TEST_CASE("nccl/rendezvous: over TCP every rank gets rank 0's id, whichever starts first",
          "[nccl]") {
  si::Session const session;
  require_one_id(all(5, launch(0, 5, "localhost", free_port()), {}));
  require_one_id(all(5, launch(0, 5, "::1", free_port()), {}));
  require_one_id(all(1, launch(0, 1, "", 0), {}));
}

TEST_CASE("nccl/rendezvous: without IPv6 ranks meet by IPv4", "[nccl]") {
  si::Session const session;
  int const port = free_port();
  std::vector<Got> got;
  bool const can = on_ipv4([&] { got = all(3, launch(0, 3, "127.0.0.1", port), {}); });
  if (!can) {
    WARN("this system has no seccomp: skipped");
    return;
  }
  require_one_id(got);
}

TEST_CASE("nccl/rendezvous: an address that takes no connection costs a second, not the deadline",
          "[nccl]") {
  si::Session const session;
  // Rank 0 listens by IPv4; at the same port of IPv6 a queue is full, where connecting hangs.
  Held const hole("::1");
  std::vector<tcp::Socket> queue;
  for (int i = 0; i < 3; ++i) {
    queue.emplace_back(::socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK, 0));
    static_cast<void>(::connect(
        queue.back().get(), reinterpret_cast<::sockaddr const*>(&hole.at.storage), hole.at.size));
  }
  tcp::RendezvousInfo info;
  info.size = 2;
  info.ports = {hole.port()};
  info.end = tcp::Deadline(60);
  std::array<std::byte, 4> sent{std::byte{7}, std::byte{8}};
  std::array<std::byte, 4> got{};
  bool can = true;
  std::thread host([&] { can = on_ipv4([&] { tcp::Host(info, sent).serve(); }); });
  tcp::Greeting greeting;
  greeting.rank = 1;
  greeting.process = 5;
  std::string error;
  auto const four = tcp::resolve("127.0.0.1", error).at(0);
  auto const start = std::chrono::steady_clock::now();
  auto verdict = tcp::Verdict::nobody;
  while (verdict == tcp::Verdict::nobody && can && info.end.left_ms() != 0)
    verdict = tcp::ask_all(info, {hole.at, four}, greeting, got);
  host.join();
  if (!can) {
    WARN("this system has no seccomp: skipped");
    return;
  }
  CHECK(verdict == tcp::Verdict::welcome);
  CHECK(got == sent);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(30));
}

TEST_CASE("nccl/rendezvous: where the launcher's port is held, ranks meet at one of the next",
          "[nccl]") {
  si::Session const session;
  auto who = launch(0, 3, "localhost", free_port(3));
  who.run = "a run";
  sg::nccl::Rendezvous options;
  SECTION("the launcher says that it listens there") {
    Held const store("::", who.port);
    who.port_held = true;
    REQUIRE(tcp::ports_of(who, options).front() == who.port + 1);
    require_one_id(all(3, who, options));
    options.run = "another name";
    require_one_id(all(3, who, options));
    who.run.clear();
    options.run.clear();
    require_one_id(all(3, who, options));
  }
  SECTION("others listen there, and say nothing or something else") {
    Held const silent("::", who.port);
    Held const web("::", who.port + 1);
    std::thread server([&] {
      for (;;) {
        tcp::Socket const peer(::accept(web.socket.get(), nullptr, nullptr));
        char what = 0;
        if (!peer || ::recv(peer.get(), &what, 1, 0) != 1 || what != 's') return;
        std::string const page = "HTTP/1.0 400 Bad Request\r\n\r\nThis is no rank.";
        tcp::send_all(peer, page.data(), page.size());
      }
    });
    require_one_id(all(3, who, options));
    static_cast<void>(connected(who.port + 1, "the end"));
    server.join();
  }
  SECTION("behind the last port the next ones are those from 1024 on") {
    who.port = 65533;
    CHECK(tcp::ports_of(who, options) ==
          std::vector{65533, 65534, 65535, 1024, 1025, 1026, 1027, 1028});
  }
}

TEST_CASE("nccl/rendezvous: what is no rank of the run gets nothing and holds nobody up",
          "[nccl]") {
  si::Session const session;
  int const port = free_port();
  auto who = launch(0, 3, "localhost", port);
  who.run = "run 1";
  Rank zero(who, {});
  auto const silent = connected(port);
  auto const web = connected(port, "GET / HTTP/1.0\r\n\r\nand so on, for longer than a greeting");
  static_cast<void>(connected(port, "stag"));  // and hangs up
  tcp::Greeting greeting;
  greeting.process = 9;
  greeting.rank = 1;
  auto const wrong = [&](std::uint64_t run, std::uint64_t rank) {
    greeting.run = run;
    greeting.rank = rank;
    auto const caller =
        connected(port, {reinterpret_cast<char const*>(&greeting), sizeof greeting});
    std::array<char, sizeof(tcp::Answer) + sizeof(sg::nccl::Invitation)> said{};
    return ::recv(caller.get(), said.data(), said.size(), MSG_WAITALL) == sizeof(tcp::Answer);
  };
  CHECK(wrong(3, 1));
  auto const run = sg::collective::digest(sg::text("run 1\n", port, "\n3"));
  CHECK(wrong(run, 0));
  CHECK(wrong(run, 3));
  CHECK(wrong(run, ~std::uint64_t{0}));

  sg::nccl::Rendezvous soon;
  soon.deadline_s = 2;
  who.rank = 1;
  auto other = who;
  other.run = "run 2";
  Rank foreign(other, soon);
  other = who;
  other.size = 4;
  Rank larger(other, soon);
  CHECK(has(foreign.join().words, "rank 0 of another run"));
  CHECK(has(larger.join().words, "with another number of ranks"));
  char rest = 0;
  CHECK(::recv(web.get(), &rest, 1, 0) <= 0);

  Rank one(who, {});
  who.rank = 2;
  Rank two(who, {});
  require_one_id({zero.join().got, one.join().got, two.join().got});
}

TEST_CASE("nccl/rendezvous: a rank counts once it has the bytes, and once", "[nccl]") {
  si::Session const session;
  int const port = free_port();
  auto who = launch(0, 3, "localhost", port);
  Rank zero(who, {});
  tcp::Greeting greeting;
  greeting.run = sg::collective::digest(sg::text("\n", port, "\n3"));
  greeting.rank = 1;
  greeting.process = 77;
  std::string const says(reinterpret_cast<char const*>(&greeting), sizeof greeting);
  std::array<char, sizeof(tcp::Answer) + sizeof(sg::nccl::Invitation)> said{};
  auto const hear = [&](tcp::Socket const& socket) {
    return ::recv(socket.get(), said.data(), said.size(), MSG_WAITALL) ==
           static_cast<::ssize_t>(said.size());
  };
  SECTION("a connection that is given up after the answer does not count, nor hold the place") {
    CHECK(hear(connected(port, says)));
    static_cast<void>(connected(port, says));  // hangs up with the answer unread, or before it
    who.rank = 2;
    Rank two(who, {});
    CHECK(two.join().words == "");
    auto const again = connected(port, says);  // rank 0 is still there
    CHECK(hear(again));
    CHECK(tcp::send_all(again, "", 1));
    require_one_id({zero.join().got, two.got});
  }
  SECTION("a second process of the same rank is told so, and the first one and the rest meet") {
    who.rank = 1;
    Rank one(who, {});
    CHECK(one.join().words == "");
    Rank second(who, {});
    CHECK(second.join().code == sg::Errc::bad_configuration);
    CHECK(has(second.words, "that it is rank 1; see that the launcher gives each process"));
    who.rank = 2;
    Rank two(who, {});
    require_one_id({zero.join().got, one.got, two.join().got});
  }
}

TEST_CASE("nccl/rendezvous: through a file every rank gets rank 0's id", "[nccl]") {
  si::Session const session;
  sg::nccl::Rendezvous options;
  options.file = temporary("id");
  options.run = "run 1";
  auto who = launch(0, 4, "", 0);
  require_one_id(all(4, who, options));

  SECTION("one of an earlier run is not taken, and replaced") {
    options.run = "run 2";
    options.deadline_s = 0.1;
    who.rank = 1;
    CHECK(has(Rank(who, options).join().words, "which is another run's"));
    options.deadline_s = 60;
    require_one_id(all(4, who, options));
  }
  SECTION("half of one is not taken") {
    std::ofstream(options.file) << "stagger:";
    options.deadline_s = 0.1;
    who.rank = 1;
    CHECK(has(Rank(who, options).join().words, "which is another run's"));
  }
  SECTION("a link in its place is neither followed nor believed") {
    std::string const victim = temporary("victim");
    REQUIRE(std::rename(options.file.c_str(), victim.c_str()) == 0);  // which is of this run
    REQUIRE(::symlink(victim.c_str(), options.file.c_str()) == 0);
    auto const words = [&] {
      std::ifstream file(victim, std::ios::binary);
      return std::string(std::istreambuf_iterator<char>(file), {});
    };
    std::string const before = words();
    options.deadline_s = 0.1;
    who.rank = 1;
    CHECK(refused(who, options) == sg::Errc::deadline);
    options.deadline_s = 60;
    require_one_id(all(4, who, options));
    CHECK(words() == before);
    std::remove(victim.c_str());
  }
  SECTION("a pipe in its place holds nobody up") {
    std::remove(options.file.c_str());
    REQUIRE(::mkfifo(options.file.c_str(), 0600) == 0);
    options.deadline_s = 0.1;
    who.rank = 1;
    CHECK(refused(who, options) == sg::Errc::deadline);
  }
  std::remove(options.file.c_str());
}

TEST_CASE("nccl/rendezvous: who does not come, or cannot be met, is an error in time", "[nccl]") {
  si::Session const session;
  sg::nccl::Rendezvous options;
  options.deadline_s = 0.1;
  int const port = free_port();
  CHECK(refused(launch(0, 2, "localhost", port), options) == sg::Errc::deadline);
  CHECK(refused(launch(1, 2, "localhost", port), options) == sg::Errc::deadline);
  CHECK(refused(launch(1, 2, "no-such-host.invalid", port), options) == sg::Errc::deadline);
  CHECK(has(Rank(launch(1, 2, "no-such-host.invalid", port), options).join().words,
            "no-such-host.invalid:"));
  CHECK(has(Rank(launch(0, 20, "localhost", port), options).join().words,
            "for rank 1, 2, 3, 4, 5, 6, 7, 8 and 11 more"));
  CHECK(refused(launch(1, 2, "", 0), options) == sg::Errc::bad_configuration);
  options.file = "no/such/folder/file";
  CHECK(has(Rank(launch(0, 2, "", 0), options).join().words, "set Rendezvous::run to a name"));
  options.run = "run 1";
  CHECK(refused(launch(0, 2, "", 0), options) == sg::Errc::io);
  CHECK(refused(launch(1, 2, "", 0), options) == sg::Errc::deadline);
  Held const taken("::", port);
  options.port = port;
  CHECK(refused(launch(0, 2, "localhost", 0), options) == sg::Errc::io);
  CHECK(has(Rank(launch(1, 2, "localhost", 0), options).join().words, "rank 1 waited 0.1"));
  options.port = 65536;
  CHECK(refused(launch(0, 2, "localhost", 0), options) == sg::Errc::bad_configuration);
  options.port = 0;
  options.deadline_s = 0;
  CHECK(refused(launch(0, 2, "localhost", port), options) == sg::Errc::bad_configuration);
}

TEST_CASE("nccl/rendezvous: a process has the GPU of its number, of those that it sees", "[nccl]") {
  si::Session const session;
  sg::collective::Launch who = launch(13, 16, "", 0);
  who.local_rank = 5;
  auto const with = [&](int devices) {
    si::Machine machine;
    machine.devices = devices;
    si::set_machine(machine);
    return sg::nccl::local_device(who);
  };
  CHECK(with(8) == 5);
  CHECK(with(1) == 0);  // a launcher that shows each process its own GPU
  CHECK(with(2) == 1);  // or two
  who.local_rank = -1;
  CHECK(with(8) == 5);
}

}  // namespace rendezvous_test
