# Copyright: (c) 2026, dgxspark.vllm contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Forms of tokens, by vendor: the rules of gitleaks that need no name before the token. Generated, do not edit.

Made by scripts/generate_secret_rules.py from gitleaks' config/gitleaks.toml, https://github.com/gitleaks/gitleaks.

The rules are Copyright (c) 2019 Zachary Rice, under the MIT License:
Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""

from __future__ import annotations

RULES: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (
        "1password-secret-key",
        ("a3-",),
        (
            "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))A3-[A-Z0-9]{6}-(?:(?:[A-Z0-9]{11})|(?:[A-Z0-9]{6}-[A-Z0-9]{5}))-[A-"
            "Z0-9]{5}-[A-Z0-9]{5}-[A-Z0-9]{5}\\b"
        ),
    ),
    ("1password-service-account-token", ("ops_",), "ops_eyJ[a-zA-Z0-9+/]{250,}={0,3}"),
    ("adobe-client-secret", ("p8e-",), "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(p8e-(?i:[a-z0-9]{32}))(?![A-Za-z0-9])"),
    ("age-secret-key", ("age-secret-key-1",), "AGE-SECRET-KEY-1[QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L]{58}"),
    (
        "airtable-personnal-access-token",
        ("airtable",),
        "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(pat[A-Za-z0-9]{14}\\.[a-f0-9]{64})\\b",
    ),
    ("alibaba-access-key-id", ("ltai",), "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(LTAI(?i:[a-z0-9]{20}))(?![A-Za-z0-9])"),
    (
        "anthropic-admin-api-key",
        ("sk-ant-admin01",),
        "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(sk-ant-admin01-[a-zA-Z0-9_\\-]{93}AA)(?![A-Za-z0-9])",
    ),
    (
        "anthropic-api-key",
        ("sk-ant-api03",),
        "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(sk-ant-api03-[a-zA-Z0-9_\\-]{93}AA)(?![A-Za-z0-9])",
    ),
    ("artifactory-api-key", ("akcp",), "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))AKCp[A-Za-z0-9]{69}\\b"),
    ("artifactory-reference-token", ("cmvmd",), "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))cmVmd[A-Za-z0-9]{59}\\b"),
    (
        "authress-service-client-access-key",
        ("authress_", "ext_", "sc_", "scauth_"),
        (
            "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))((?:sc|ext|scauth|authress)_(?i:[a-z0-9]{5,30}\\.[a-z0-9]{4,6}\\.(?-i"
            ":acc)[_-][a-z0-9-]{10,32}\\.[a-z0-9+/_=-]{30,120}))(?![A-Za-z0-9])"
        ),
    ),
    (
        "aws-access-token",
        ("a3t", "abia", "acca", "akia", "asia"),
        "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))((?:A3T[A-Z0-9]|AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16})\\b",
    ),
    (
        "aws-amazon-bedrock-api-key-long-lived",
        ("absk",),
        "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(ABSK[A-Za-z0-9+/]{109,269}={0,2})(?![A-Za-z0-9])",
    ),
    ("aws-amazon-bedrock-api-key-short-lived", ("bedrock-api-key-",), "bedrock-api-key-YmVkcm9jay5hbWF6b25hd3MuY29t"),
    (
        "azure-ad-client-secret",
        ("q~",),
        "(?:^|[\\\\'\"`\\s>=:(,)])([a-zA-Z0-9_~.]{3}\\dQ~[a-zA-Z0-9_~.-]{31,34})(?:$|[\\\\'\"`\\s<),])",
    ),
    ("clickhouse-cloud-api-secret-key", ("4b1d",), "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(4b1d[A-Za-z0-9]{38})\\b"),
    ("clojars-api-token", ("clojars_",), "(?i)CLOJARS_[a-z0-9]{60}"),
    (
        "cloudflare-origin-ca-key",
        ("cloudflare", "v1.0-"),
        "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(v1\\.0-[a-f0-9]{24}-[a-f0-9]{146})(?![A-Za-z0-9])",
    ),
    (
        "databricks-api-token",
        ("dapi",),
        "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(dapi[a-f0-9]{32}(?:-\\d)?)(?![A-Za-z0-9])",
    ),
    (
        "digitalocean-access-token",
        ("doo_v1_",),
        "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(doo_v1_[a-f0-9]{64})(?![A-Za-z0-9])",
    ),
    ("digitalocean-pat", ("dop_v1_",), "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(dop_v1_[a-f0-9]{64})(?![A-Za-z0-9])"),
    (
        "digitalocean-refresh-token",
        ("dor_v1_",),
        "(?i)(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(dor_v1_[a-f0-9]{64})(?![A-Za-z0-9])",
    ),
    ("doppler-api-token", ("dp.pt.",), "dp\\.pt\\.(?i:[a-z0-9]{43})"),
    ("duffel-api-token", ("duffel_",), "duffel_(?:test|live)_(?i:[a-z0-9_\\-=]{43})"),
    ("dynatrace-api-token", ("dt0c01.",), "dt0c01\\.(?i:[a-z0-9]{24}\\.[a-z0-9]{64})"),
    ("easypost-api-token", ("ezak",), "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))EZAK(?i:[a-z0-9]{54}\\b)"),
    ("easypost-test-api-token", ("eztk",), "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))EZTK(?i:[a-z0-9]{54}\\b)"),
    (
        "facebook-access-token",
        ("facebook",),
        "(?i)(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(\\d{15,16}(\\||%)[0-9a-z\\-_]{27,40})(?![A-Za-z0-9])",
    ),
    (
        "facebook-page-access-token",
        ("eaac", "eaam"),
        "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(EAA[MC](?i:[a-z0-9]{100,}))(?![A-Za-z0-9])",
    ),
    ("flutterwave-encryption-key", ("flwseck_test",), "FLWSECK_TEST-(?i:[a-h0-9]{12})"),
    ("flutterwave-public-key", ("flwpubk_test",), "FLWPUBK_TEST-(?i:[a-h0-9]{32}-X)"),
    ("flutterwave-secret-key", ("flwseck_test",), "FLWSECK_TEST-(?i:[a-h0-9]{32}-X)"),
    (
        "flyio-access-token",
        ("fm1", "fm2_", "fo1_"),
        (
            "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))((?:fo1_[\\w-]{43}|fm1[ar]_[a-zA-Z0-9+\\/]{100,}={0,3}|fm2_[a-zA-Z0-9"
            "+\\/]{100,}={0,3}))(?![A-Za-z0-9])"
        ),
    ),
    ("frameio-api-token", ("fio-u-",), "fio-u-(?i:[a-z0-9\\-_=]{64})"),
    ("freemius-secret-key", ("secret_key",), "(?i)[\"']secret_key[\"']\\s*=>\\s*[\"'](sk_[\\S]{29})[\"']"),
    ("gcp-api-key", ("aiza",), "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(AIza[\\w-]{35})(?![A-Za-z0-9])"),
    ("github-app-token", ("ghs_", "ghu_"), "(?:ghu|ghs)_[0-9a-zA-Z]{36}"),
    ("github-fine-grained-pat", ("github_pat_",), "github_pat_\\w{82}"),
    ("github-oauth", ("gho_",), "gho_[0-9a-zA-Z]{36}"),
    ("github-pat", ("ghp_",), "ghp_[0-9a-zA-Z]{36}"),
    ("github-refresh-token", ("ghr_",), "ghr_[0-9a-zA-Z]{36}"),
    ("gitlab-cicd-job-token", ("glcbt-",), "glcbt-[0-9a-zA-Z]{1,5}_[0-9a-zA-Z_-]{20}"),
    ("gitlab-deploy-token", ("gldt-",), "gldt-[0-9a-zA-Z_\\-]{20}"),
    ("gitlab-feature-flag-client-token", ("glffct-",), "glffct-[0-9a-zA-Z_\\-]{20}"),
    ("gitlab-feed-token", ("glft-",), "glft-[0-9a-zA-Z_\\-]{20}"),
    ("gitlab-incoming-mail-token", ("glimt-",), "glimt-[0-9a-zA-Z_\\-]{25}"),
    ("gitlab-kubernetes-agent-token", ("glagent-",), "glagent-[0-9a-zA-Z_\\-]{50}"),
    ("gitlab-oauth-app-secret", ("gloas-",), "gloas-[0-9a-zA-Z_\\-]{64}"),
    ("gitlab-pat", ("glpat-",), "glpat-[\\w-]{20}"),
    (
        "gitlab-pat-routable",
        ("glpat-",),
        "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))glpat-[0-9a-zA-Z_-]{27,300}\\.[0-9a-z]{2}[0-9a-z]{7}\\b",
    ),
    ("gitlab-ptt", ("glptt-",), "glptt-[0-9a-f]{40}"),
    ("gitlab-rrt", ("gr1348941",), "GR1348941[\\w-]{20}"),
    ("gitlab-runner-authentication-token", ("glrt-",), "glrt-[0-9a-zA-Z_\\-]{20}"),
    (
        "gitlab-runner-authentication-token-routable",
        ("glrt-",),
        "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))glrt-t\\d_[0-9a-zA-Z_\\-]{27,300}\\.[0-9a-z]{2}[0-9a-z]{7}\\b",
    ),
    ("gitlab-scim-token", ("glsoat-",), "glsoat-[0-9a-zA-Z_\\-]{20}"),
    ("gitlab-session-cookie", ("_gitlab_session=",), "_gitlab_session=[0-9a-z]{32}"),
    (
        "grafana-api-key",
        ("eyjrijoi",),
        "(?i)(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(eyJrIjoi[A-Za-z0-9]{70,400}={0,3})(?![A-Za-z0-9])",
    ),
    (
        "grafana-cloud-api-token",
        ("glc_",),
        "(?i)(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(glc_[A-Za-z0-9+/]{32,400}={0,3})(?![A-Za-z0-9])",
    ),
    (
        "grafana-service-account-token",
        ("glsa_",),
        "(?i)(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(glsa_[A-Za-z0-9]{32}_[A-Fa-f0-9]{8})(?![A-Za-z0-9])",
    ),
    ("harness-api-key", ("pat.", "sat."), "(?:pat|sat)\\.[a-zA-Z0-9_-]{22}\\.[a-zA-Z0-9]{24}\\.[a-zA-Z0-9]{20}"),
    ("hashicorp-tf-api-token", ("atlasv1",), "(?i)[a-z0-9]{14}\\.(?-i:atlasv1)\\.[a-z0-9\\-_=]{60,70}"),
    (
        "heroku-api-key-v2",
        ("hrku-aa",),
        "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))((HRKU-AA[0-9a-zA-Z_-]{58}))(?![A-Za-z0-9])",
    ),
    ("huggingface-access-token", ("hf_",), "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(hf_(?i:[a-z]{34}))(?![A-Za-z0-9])"),
    (
        "huggingface-organization-api-token",
        ("api_org_",),
        "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(api_org_(?i:[a-z]{34}))(?![A-Za-z0-9])",
    ),
    ("infracost-api-token", ("ico-",), "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(ico-[a-zA-Z0-9]{32})(?![A-Za-z0-9])"),
    (
        "intra42-client-secret",
        ("intra", "s-s4t2af-", "s-s4t2ud-"),
        "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(s-s4t2(?:ud|af)-(?i:[abcdef0123456789]{64}))(?![A-Za-z0-9])",
    ),
    ("linear-api-key", ("lin_api_",), "lin_api_(?i:[a-z0-9]{40})"),
    (
        "maxmind-license-key",
        ("_mmk",),
        "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))([A-Za-z0-9]{6}_[A-Za-z0-9]{29}_mmk)(?![A-Za-z0-9])",
    ),
    (
        "microsoft-teams-webhook",
        ("incomingwebhook", "webhook.office.com", "webhookb2"),
        (
            "https://[a-z0-9]+\\.webhook\\.office\\.com/webhookb2/[a-z0-9]{8}-([a-z0-9]{4}-){3}[a-z0-9]{12}@[a-z0-9]"
            "{8}-([a-z0-9]{4}-){3}[a-z0-9]{12}/IncomingWebhook/[a-z0-9]{32}/[a-z0-9]{8}-([a-z0-9]{4}-){3}[a-z0-9]"
            "{12}"
        ),
    ),
    (
        "notion-api-token",
        ("ntn_",),
        "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(ntn_[0-9]{11}[A-Za-z0-9]{32}[A-Za-z0-9]{3})(?![A-Za-z0-9])",
    ),
    ("npm-access-token", ("npm_",), "(?i)(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(npm_[a-z0-9]{36})(?![A-Za-z0-9])"),
    ("octopus-deploy-api-key", ("api-",), "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(API-[A-Z0-9]{26})(?![A-Za-z0-9])"),
    (
        "openai-api-key",
        ("t3blbkfj",),
        (
            "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(sk-(?:proj|svcacct|admin)-(?:[A-Za-z0-9_-]{74}|[A-Za-z0-9_-]{58})T"
            "3BlbkFJ(?:[A-Za-z0-9_-]{74}|[A-Za-z0-9_-]{58})\\b|sk-[a-zA-Z0-9]{20}T3BlbkFJ[a-zA-Z0-9]{20})(?![A-Za-"
            "z0-9])"
        ),
    ),
    ("openshift-user-token", ("sha256~",), "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(sha256~[\\w-]{43})(?:[^\\w-]|\\Z)"),
    (
        "perplexity-api-key",
        ("pplx-",),
        "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(pplx-[a-zA-Z0-9]{48})(?:[`'\"\\s;]|\\\\[nr]|$|\\b)",
    ),
    (
        "planetscale-api-token",
        ("pscale_tkn_",),
        "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(pscale_tkn_(?i:[\\w=\\.-]{32,64}))(?![A-Za-z0-9])",
    ),
    (
        "planetscale-oauth-token",
        ("pscale_oauth_",),
        "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(pscale_oauth_[\\w=\\.-]{32,64})(?![A-Za-z0-9])",
    ),
    (
        "planetscale-password",
        ("pscale_pw_",),
        "(?i)(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(pscale_pw_(?i:[\\w=\\.-]{32,64}))(?![A-Za-z0-9])",
    ),
    (
        "postman-api-token",
        ("pmak-",),
        "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(PMAK-(?i:[a-f0-9]{24}\\-[a-f0-9]{34}))(?![A-Za-z0-9])",
    ),
    ("prefect-api-token", ("pnu_",), "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(pnu_[a-zA-Z0-9]{36})(?![A-Za-z0-9])"),
    ("pulumi-api-token", ("pul-",), "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(pul-[a-f0-9]{40})(?![A-Za-z0-9])"),
    ("pypi-upload-token", ("pypi-ageichlwas5vcmc",), "pypi-AgEIcHlwaS5vcmc[\\w-]{50,1000}"),
    ("readme-api-token", ("rdme_",), "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(rdme_[a-z0-9]{70})(?![A-Za-z0-9])"),
    ("rubygems-api-token", ("rubygems_",), "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(rubygems_[a-f0-9]{48})(?![A-Za-z0-9])"),
    ("scalingo-api-token", ("tk-us-",), "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(tk-us-[\\w-]{48})(?![A-Za-z0-9])"),
    (
        "sendgrid-api-token",
        ("sg.",),
        "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(SG\\.(?i:[a-z0-9=_\\-\\.]{66}))(?![A-Za-z0-9])",
    ),
    (
        "sendinblue-api-token",
        ("xkeysib-",),
        "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(xkeysib-[a-f0-9]{64}\\-(?i:[a-z0-9]{16}))(?![A-Za-z0-9])",
    ),
    (
        "sentry-org-token",
        ("sntrys_eyjpyxqio",),
        (
            "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))sntrys_eyJpYXQiO[a-zA-Z0-9+/]{10,200}(?:LCJyZWdpb25fdXJs|InJlZ2lvbl"
            "91cmwi|cmVnaW9uX3VybCI6)[a-zA-Z0-9+/]{10,200}={0,2}_[a-zA-Z0-9+/]{43}(?:[^a-zA-Z0-9+/]|\\Z)"
        ),
    ),
    ("sentry-user-token", ("sntryu_",), "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(sntryu_[a-f0-9]{64})(?![A-Za-z0-9])"),
    (
        "settlemint-application-access-token",
        ("sm_aat",),
        "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(sm_aat_[a-zA-Z0-9]{16})(?![A-Za-z0-9])",
    ),
    (
        "settlemint-personal-access-token",
        ("sm_pat",),
        "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(sm_pat_[a-zA-Z0-9]{16})(?![A-Za-z0-9])",
    ),
    (
        "settlemint-service-access-token",
        ("sm_sat",),
        "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(sm_sat_[a-zA-Z0-9]{16})(?![A-Za-z0-9])",
    ),
    (
        "shippo-api-token",
        ("shippo_",),
        "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(shippo_(?:live|test)_[a-fA-F0-9]{40})(?![A-Za-z0-9])",
    ),
    ("shopify-access-token", ("shpat_",), "shpat_[a-fA-F0-9]{32}"),
    ("shopify-custom-access-token", ("shpca_",), "shpca_[a-fA-F0-9]{32}"),
    ("shopify-private-app-access-token", ("shppa_",), "shppa_[a-fA-F0-9]{32}"),
    ("shopify-shared-secret", ("shpss_",), "shpss_[a-fA-F0-9]{32}"),
    (
        "sidekiq-sensitive-url",
        ("enterprise.contribsys.com", "gems.contribsys.com"),
        (
            "(?i)(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))https?://([a-f0-9]{8}:[a-f0-9]{8})@(?:gems.contribsys.com|enter"
            "prise.contribsys.com)(?:[\\/|\\#|\\?|:]|$)"
        ),
    ),
    ("slack-app-token", ("xapp",), "(?i)xapp-\\d-[A-Z0-9]+-\\d+-[a-z0-9]+"),
    ("slack-bot-token", ("xoxb",), "xoxb-[0-9]{10,13}-[0-9]{10,13}[a-zA-Z0-9-]*"),
    ("slack-config-access-token", ("xoxe.xoxb-", "xoxe.xoxp-"), "(?i)xoxe.xox[bp]-\\d-[A-Z0-9]{163,166}"),
    ("slack-config-refresh-token", ("xoxe-",), "(?i)xoxe-\\d-[A-Z0-9]{146}"),
    ("slack-legacy-bot-token", ("xoxb",), "xoxb-[0-9]{8,14}-[a-zA-Z0-9]{18,26}"),
    ("slack-legacy-token", ("xoxo", "xoxs"), "xox[os]-\\d+-\\d+-\\d+-[a-fA-F\\d]+"),
    ("slack-legacy-workspace-token", ("xoxa", "xoxr"), "xox[ar]-(?:\\d-)?[0-9a-zA-Z]{8,48}"),
    ("slack-user-token", ("xoxe-", "xoxp-"), "xox[pe](?:-[0-9]{10,13}){3}-[a-zA-Z0-9-]{28,34}"),
    (
        "slack-webhook-url",
        ("hooks.slack.com",),
        "(?:https?://)?hooks.slack.com/(?:services|workflows|triggers)/[A-Za-z0-9+/]{43,56}",
    ),
    (
        "sourcegraph-access-token",
        ("sgp_", "sourcegraph"),
        (
            "(?i)(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(\\b(sgp_(?:[a-fA-F0-9]{16}|local)_[a-fA-F0-9]{40}|sgp_[a-fA-F0-"
            "9]{40}|[a-fA-F0-9]{40})\\b)(?![A-Za-z0-9])"
        ),
    ),
    (
        "square-access-token",
        ("eaaa", "sq0atp-"),
        "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))((?:EAAA|sq0atp-)[\\w-]{22,60})(?![A-Za-z0-9])",
    ),
    (
        "stripe-access-token",
        ("rk_live", "rk_prod", "rk_test", "sk_live", "sk_prod", "sk_test"),
        "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))((?:sk|rk)_(?:test|live|prod)_[a-zA-Z0-9]{10,99})(?![A-Za-z0-9])",
    ),
    ("twilio-api-key", ("sk",), "SK[0-9a-fA-F]{32}"),
    ("vault-batch-token", ("hvb.",), "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))(hvb\\.[\\w-]{138,300})(?![A-Za-z0-9])"),
    (
        "vault-service-token",
        ("hvs.", "s."),
        "(?:(?<![A-Za-z0-9])|(?<=\\\\[nrt]))((?:hvs\\.[\\w-]{90,120}|s\\.(?i:[a-z0-9]{24})))(?![A-Za-z0-9])",
    ),
)
"""Rules: id, words of which one is in each text with such a token (in lower case), regular expression."""
