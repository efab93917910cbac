#!/bin/sh
# First process of the guest. pmem0: the root image; vda: a tar of what the run brings (and /.run); vdb: takes a tar
# of what it leaves behind. Ports 1 to 3: the command's output, its errors, its verdict.
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
fail() { # without a verdict, so that the host shows this console
    echo "numa_vm: $*"
    poweroff -f
}
for module in /modules/*.ko; do insmod "$module" || echo "numa_vm: insmod $module failed"; done
tries=0
until [ -b /dev/pmem0 ] && [ -b /dev/vdb ] && [ -c /dev/vport*p3 ]; do
    tries=$((tries + 1))
    [ $tries -lt 12000 ] || fail "the guest's devices did not appear"
    usleep 10000
done
port=$(echo /dev/vport*p3)
port=${port%3}

# what is brought takes memory of node 1 where that is there: node 0 is the job's
mount -t tmpfs -o size=90%,mpol=prefer:1 upper /mnt || mount -t tmpfs -o size=90% upper /mnt
mkdir /mnt/image /mnt/brought /mnt/changed /mnt/work /mnt/root
mount -o ro,dax /dev/pmem0 /mnt/image || fail "the root image could not be mounted"
tar xf /dev/vda -C /mnt/brought || fail "what the run brings does not fit into the guest's memory"
mount -t overlay -o lowerdir=/mnt/brought:/mnt/image,upperdir=/mnt/changed,workdir=/mnt/work root /mnt/root
cd /mnt/root
for folder in proc sys dev; do mount -o bind /$folder $folder; done
mkdir -p dev/pts dev/shm
mount -t devpts devpts dev/pts
mount -t tmpfs shm dev/shm
mount -t tracefs tracefs sys/kernel/tracing
mount -t bpf bpf sys/fs/bpf
mount -t cgroup2 cgroup2 sys/fs/cgroup
ln -s /proc/self/fd dev/fd
ln -s /proc/self/fd/0 dev/stdin
ln -s /proc/self/fd/1 dev/stdout
ln -s /proc/self/fd/2 dev/stderr
ifconfig lo 127.0.0.1 up
hostname numa-vm
[ ! -d /cxl ] || [ -z "$(ls /cxl)" ] || . /cxl.sh

# pipes between, for a port has one reader and cannot be opened again as /dev/stdout
mkfifo /out /err
cat /out >"${port}1" &
out=$!
cat /err >"${port}2" &
err=$!
chroot /mnt/root /bin/sh /.run/start </dev/null >/out 2>/err
code=$?
wait $out $err

# what changed is the overlay's upper folder; its character devices stand for what was deleted
cd /mnt/changed
set --
while read -r folder; do [ ! -e "./$folder" ] || set -- "$@" "./$folder"; done </mnt/brought/.run/returned
if [ $# -gt 0 ]; then
    find "$@" -type c -exec rm {} +
    tar cf /dev/vdb "$@" || echo "numa_vm: what the command left behind did not fit"
fi
sync
echo "exit $code" >"${port}3"
poweroff -f
