#!/bin/sh
# Makes the sites' public keys known to the link, and starts the run; Ctrl-C ends only its log. Safe to give again.
set -eu
FED=${FED:-/fed}

mkdir -p "$FLWR_HOME"
cat > "$FLWR_HOME/config.toml" <<END
[superlink.fed]
address = "link:8000"
root-certificates = "$FED/certificates/ca.pem"
END
for site in client-0 client-1 client-2; do
    flwr supernode register "$FED/keys/$site.pub" fed --name "$site" || echo "$site: is known already?"
done
flwr run "$FED/trial" fed --stream
