// Beside operators that do not fit in memory: a thread that does the same again and again until the last of them ends.
#pragma once

namespace sn {

// One more operator runs. Where there is no thread to be had it goes without. `last`: all of them have ended. Until it ends
// the thread that runs it does not block SIGSEGV.
void overflow_begin(void (*tidy)(bool last));
// One has ended. The last one's end returns after the last `tidy`.
void overflow_end();

}  // namespace sn
