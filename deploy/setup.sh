#!/bin/sh
# Writes a federation of three sites with handwritten digits to try it out, its certificates and the sites' keys, below $FED.
set -eu
FED=${FED:-/fed}

mkdir -p "$FED/link"
fedbnn flower init "$FED/trial" --nodes 3 --set rounds=3
fedbnn flower certificates "$FED/certificates" --host link --host proxy
for site in client-0 client-1 client-2; do
    fedbnn flower key "$FED/trial/sites/$site/node.key"
done
