// Has TensorFlow's server listen on one address of this machine, where it would listen on all interfaces.
//
// `GrpcServer` binds the wildcard address with its port, and has no option for another. So for as long as it starts,
// the slot by which TensorFlow's libraries call `bind` leads here, and the wildcard with that port becomes the address
// wanted.
#include <arpa/inet.h>
#include <elf.h>
#include <link.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tensorflow_ipu/kernels/core/mutex.h"

namespace tensorflow_ipu {
namespace {

// A pointer by which a library calls `bind`, and what it was.
struct Slot {
  ElfW(Addr) * place;
  ElfW(Addr) before;
};

struct Redirection {
  sockaddr_storage wanted{};
  int bound = 0;
  std::vector<Slot> slots;
};

core::Mutex redirecting;
Redirection redirection IPU_GUARDED_BY(redirecting);

in_port_t PortOf(const sockaddr* address) {
  // The port is at one place in both.
  return reinterpret_cast<const sockaddr_in*>(address)->sin_port;
}

bool IsWildcard(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr == htonl(INADDR_ANY);
  }
  if (address->sa_family != AF_INET6) return false;
  const in6_addr& found = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  if (IN6_IS_ADDR_UNSPECIFIED(&found)) return true;
  return IN6_IS_ADDR_V4MAPPED(&found) && std::memcmp(found.s6_addr + 12, "\0\0\0\0", 4) == 0;
}

// The wanted address as one of a socket of IPv6, which takes those of IPv4 as well.
sockaddr_in6 Mapped(const sockaddr_in& wanted) {
  sockaddr_in6 mapped{};
  mapped.sin6_family = AF_INET6;
  mapped.sin6_port = wanted.sin_port;
  mapped.sin6_addr.s6_addr[10] = mapped.sin6_addr.s6_addr[11] = 0xff;
  std::memcpy(mapped.sin6_addr.s6_addr + 12, &wanted.sin_addr, 4);
  return mapped;
}

int BindAlone(int socket, const sockaddr* address, socklen_t length) {
  const core::Lock lock(redirecting);
  const auto* wanted = reinterpret_cast<const sockaddr*>(&redirection.wanted);
  if (!IsWildcard(address) || PortOf(address) != PortOf(wanted)) return bind(socket, address, length);
  int result;
  if (address->sa_family == AF_INET6 && wanted->sa_family == AF_INET) {
    const sockaddr_in6 mapped = Mapped(reinterpret_cast<const sockaddr_in&>(redirection.wanted));
    result = bind(socket, reinterpret_cast<const sockaddr*>(&mapped), sizeof(mapped));
  } else if (address->sa_family == wanted->sa_family) {
    result = bind(socket, wanted, wanted->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
  } else {
    errno = EAFNOSUPPORT;
    return -1;
  }
  if (result == 0) ++redirection.bound;
  return result;
}

bool Write(ElfW(Addr) * place, ElfW(Addr) value) {
  // Libraries that were linked for it have these pointers where nobody may write.
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  void* const begin = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(place) / page * page);
  if (mprotect(begin, page, PROT_READ | PROT_WRITE) != 0) return false;
  __atomic_store_n(place, value, __ATOMIC_SEQ_CST);
  return true;
}

// What of a library's dynamic section tells the calls that it makes into others.
struct Calls {
  const ElfW(Sym) * symbols = nullptr;
  const char* names = nullptr;
  const ElfW(Rela) * relocations = nullptr;
  std::size_t bytes = 0;
};

ElfW(Addr) Absolute(ElfW(Addr) base, ElfW(Addr) address) { return address < base ? base + address : address; }

int CollectSlots(dl_phdr_info* library, std::size_t, void* slots) {
  const char* const path = library->dlpi_name;
  if (std::strstr(path, "libtensorflow_framework") == nullptr && std::strstr(path, "libtensorflow_cc") == nullptr)
    return 0;
  Calls calls;
  for (int i = 0; i < library->dlpi_phnum; ++i) {
    if (library->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
    const auto* entry = reinterpret_cast<const ElfW(Dyn)*>(library->dlpi_addr + library->dlpi_phdr[i].p_vaddr);
    for (; entry->d_tag != DT_NULL; ++entry) {
      const ElfW(Addr) at = Absolute(library->dlpi_addr, entry->d_un.d_ptr);
      if (entry->d_tag == DT_SYMTAB) calls.symbols = reinterpret_cast<const ElfW(Sym)*>(at);
      if (entry->d_tag == DT_STRTAB) calls.names = reinterpret_cast<const char*>(at);
      if (entry->d_tag == DT_JMPREL) calls.relocations = reinterpret_cast<const ElfW(Rela)*>(at);
      if (entry->d_tag == DT_PLTRELSZ) calls.bytes = entry->d_un.d_val;
    }
  }
  if (calls.symbols == nullptr || calls.names == nullptr || calls.relocations == nullptr) return 0;
  for (std::size_t i = 0; i < calls.bytes / sizeof(ElfW(Rela)); ++i) {
    const ElfW(Rela) & relocation = calls.relocations[i];
    const char* const name = calls.names + calls.symbols[ELF64_R_SYM(relocation.r_info)].st_name;
    if (std::strcmp(name, "bind") != 0) continue;
    auto* const place = reinterpret_cast<ElfW(Addr)*>(library->dlpi_addr + relocation.r_offset);
    static_cast<std::vector<Slot>*>(slots)->push_back({place, *place});
  }
  return 0;
}

}  // namespace
}  // namespace tensorflow_ipu

extern "C" {

// From now on TensorFlow's servers that want all interfaces with this port get this address, as digits, alone. Returns
// whether they do.
int32_t ipu_bind_alone(const char* address, const char* port) {
  using tensorflow_ipu::redirection;
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(address, port, &hints, &found) != 0) return 0;
  std::vector<tensorflow_ipu::Slot> slots;
  dl_iterate_phdr(tensorflow_ipu::CollectSlots, &slots);
  const tensorflow_ipu::core::Lock lock(tensorflow_ipu::redirecting);
  std::memcpy(&redirection.wanted, found->ai_addr, found->ai_addrlen);
  freeaddrinfo(found);
  redirection.bound = 0;
  redirection.slots.clear();
  for (const auto& slot : slots) {
    if (!tensorflow_ipu::Write(slot.place, reinterpret_cast<ElfW(Addr)>(tensorflow_ipu::BindAlone))) continue;
    redirection.slots.push_back(slot);
  }
  return !redirection.slots.empty();
}

// Ends that, and returns how many sockets got the address.
int32_t ipu_bind_as_before() {
  const tensorflow_ipu::core::Lock lock(tensorflow_ipu::redirecting);
  for (const auto& slot : tensorflow_ipu::redirection.slots) tensorflow_ipu::Write(slot.place, slot.before);
  tensorflow_ipu::redirection.slots.clear();
  return tensorflow_ipu::redirection.bound;
}

}  // extern "C"
