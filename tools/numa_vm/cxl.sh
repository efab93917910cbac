# Makes the CXL device's memory a node: a RAM region through sysfs (Debian's cxl tool cannot), online by kmem.
for module in /cxl/*.ko; do insmod "$module"; done
bus=/mnt/root/sys/bus/cxl/devices
tries=0
until [ -e $bus/endpoint*/decoder*.0/mode ] && [ -e $bus/decoder0.0/create_ram_region ]; do
    tries=$((tries + 1))
    [ $tries -lt 12000 ] || fail "no CXL device appeared"
    usleep 10000
done
endpoint=$(basename $(ls -d $bus/endpoint*/decoder*.0 | head -n 1))
region=$(cat $bus/decoder0.0/create_ram_region)
nbytes=$(cat /mnt/root/.run/cxl_bytes)
echo $region >$bus/decoder0.0/create_ram_region &&
    echo ram >$bus/$endpoint/mode &&
    echo $nbytes >$bus/$endpoint/dpa_size &&
    echo 256 >$bus/$region/interleave_granularity &&
    echo 1 >$bus/$region/interleave_ways &&
    echo $nbytes >$bus/$region/size &&
    echo $endpoint >$bus/$region/target0 &&
    echo 1 >$bus/$region/commit &&
    echo $region >/mnt/root/sys/bus/cxl/drivers/cxl_region/bind ||
    fail "the CXL region could not be made"
