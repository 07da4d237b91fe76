<?php
// Stands in for the library of the same name in the test of docs/RECEIVERS.md: the class that the page uses, as
// https://www.standardwebhooks.com describes it. The library itself comes from Packagist, which the tests do not use.
// Like the library it wants headers whose names are in lower case, and returns objects as arrays.

namespace StandardWebhooks;

class Webhook
{
    private string $key;

    public function __construct(string $secret)
    {
        $this->key = base64_decode(str_starts_with($secret, 'whsec_') ? substr($secret, 6) : $secret);
    }

    public function verify(string $payload, array $headers): mixed
    {
        $given = fn (string $name) => $headers["webhook-$name"] ?? throw new \Exception("webhook-$name is missing");
        [$id, $timestamp, $signatures] = array_map($given, ['id', 'timestamp', 'signature']);
        if (abs(time() - (int) $timestamp) > 5 * 60) {
            throw new \Exception('the timestamp is too far from now');
        }
        $expected = 'v1,' . base64_encode(hash_hmac('sha256', "$id.$timestamp.$payload", $this->key, true));
        foreach (explode(' ', $signatures) as $signature) {
            if (hash_equals($expected, $signature)) {
                return json_decode($payload, true);
            }
        }
        throw new \Exception('no signature matches');
    }
}
