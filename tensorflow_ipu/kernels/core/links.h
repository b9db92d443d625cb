// Messages by connections of this process's own, one to each other worker.
#ifndef TENSORFLOW_IPU_KERNELS_CORE_LINKS_H_
#define TENSORFLOW_IPU_KERNELS_CORE_LINKS_H_

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "tensorflow_ipu/kernels/core/link.h"
#include "tensorflow_ipu/kernels/core/network.h"

namespace tensorflow_ipu::core {

// Thread-safe. One thread reads from all links, and lives until this object is gone.
class Links : public Network {
 public:
  // `sockets`: connected, by the number of the worker at their other end; -1 for this process itself. `listener`
  // listens and does not block; who connects there is told `refusal`. -1: there is none. All are closed with the links,
  // or at once where there is no thread for them: then `outcome` says so, and the result is null.
  static std::shared_ptr<Links> Make(const std::vector<int>& sockets, int listener, const std::string& refusal,
                                     Outcome* outcome);
  ~Links() override;

  std::shared_ptr<Calls> NewCalls() override;
  void Send(const std::shared_ptr<Calls>& calls, int64_t to, const std::string& key,
            std::shared_ptr<const Message> message, Done done) override;
  void Receive(const std::shared_ptr<Calls>& calls, int64_t from, const std::string& key,
               std::shared_ptr<Message> message, Done done) override;
  void Check(int64_t worker, std::chrono::nanoseconds limit, Done done) override;

 private:
  // What the reading thread and the links share. Whoever is last closes the sockets.
  struct Polled;

  explicit Links(std::shared_ptr<Polled> polled) : polled_(std::move(polled)) {}

  static void Poll(const std::shared_ptr<Polled>& polled);

  Link& To(int64_t worker) const;

  const std::shared_ptr<Polled> polled_;
};

}  // namespace tensorflow_ipu::core

#endif  // TENSORFLOW_IPU_KERNELS_CORE_LINKS_H_
