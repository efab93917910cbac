#include "regions.h"

#include <fcntl.h>
#include <linux/memfd.h>

#include <utility>

#include "system.h"

namespace {

constexpr uint64_t kPage = 4096;
constexpr int kAddSeals = 1033, kSealWrite = 8;  // F_ADD_SEALS, F_SEAL_WRITE

}  // namespace

namespace sn {

Regions::~Regions() {
  for (Generation &generation : generations_) shut(generation.fd);
}

void Regions::open(uint32_t count) {
  owned_.assign(count, 0);
  holds_.assign(count, 0);
}

void Regions::extend(uint32_t more) {
  owned_.reserve(owned_.size() + more);
  holds_.reserve(holds_.size() + more);
  owned_.resize(owned_.size() + more);
  holds_.resize(holds_.size() + more);
}

uint32_t Regions::take(uint32_t wanted) {
  for (int attempt = 0; attempt < 2; attempt++) {
    if (wanted < count() && is_free(wanted)) next_ = wanted;
    for (uint32_t i = 0; i < count(); i++) {
      const uint32_t region = (next_ + i) % count();
      if (!is_free(region)) continue;
      owned_[region] = 1;
      next_ = (region + 1) % count();
      return region;
    }
    thaw();
  }
  return kNone;
}

void Regions::give(uint32_t region) {
  if (region != kNone) owned_[region] = 0;
}

bool Regions::has_free(uint32_t wanted) {
  for (int attempt = 0; attempt < 2; attempt++) {
    uint32_t free = 0;
    for (uint32_t i = 0; i < count() && free < wanted; i++) free += is_free((next_ + i) % count()) ? 1 : 0;
    if (free == wanted) return true;
    thaw();
  }
  return false;
}

uint32_t Regions::free_count() {
  uint32_t free = 0;
  for (uint32_t region = 0; region < count(); region++) free += is_free(region) ? 1 : 0;
  return free;
}

// Children hold a page by having it mapped: a descriptor would be closed by those that close all they have inherited.
int Regions::hold_begin(uint32_t most) {
  thaw();
  read_.clear();
  read_.reserve(most);
  generations_.reserve(generations_.size() + 1);
  const long fd = sn_system(SYS_memfd_create, arg("sentinel-child"), MFD_CLOEXEC | MFD_ALLOW_SEALING, 0, 0, 0, 0);
  if (fd < 0) return static_cast<int>(fd);
  page_fd_ = out_of_the_way(static_cast<int>(fd));
  int error = static_cast<int>(sn_system(SYS_ftruncate, page_fd_, arg(kPage), 0, 0, 0, 0));
  if (error == 0) {
    const long page = map(0, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, page_fd_);
    if (page < 0) error = static_cast<int>(page);
    else page_ = static_cast<uint64_t>(page);
  }
  if (error != 0) shut(page_fd_);
  return error;
}

void Regions::hold_end_in_parent() {
  if (page_ != 0 && unmap(page_, kPage) != 0) shut(page_fd_);  // it would look as if a child lived for ever: so be it
  page_ = 0;
  for (const uint32_t region : read_) holds_[region]++;
  generations_.push_back({std::exchange(page_fd_, -1), {}});
  generations_.back().read.swap(read_);
}

void Regions::hold_end_in_child() {
  shut(page_fd_);
  for (Generation &generation : generations_) shut(generation.fd);  // the page of its own stays mapped
}

// The kernel forbids writing to a memfd for ever, but not while anybody has it mapped to write.
void Regions::thaw() {
  for (size_t i = 0; i < generations_.size();) {
    Generation &generation = generations_[i];
    if (generation.fd < 0 || sn_system(SYS_fcntl, generation.fd, kAddSeals, kSealWrite, 0, 0, 0) != 0) {
      i++;
      continue;
    }
    for (const uint32_t region : generation.read) holds_[region]--;
    shut(generation.fd);
    if (&generation != &generations_.back()) std::swap(generation, generations_.back());
    generations_.pop_back();
  }
}

uint32_t Regions::generations() {
  thaw();
  return static_cast<uint32_t>(generations_.size());
}

}  // namespace sn
